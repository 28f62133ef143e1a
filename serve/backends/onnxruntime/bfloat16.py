"""TYPE_BF16 tensors, which numpy does not have: they are handled as arrays of uint16 that hold the same bits.

Triton's Python interface hands them over only as DLPack capsules, onnxruntime's only as `OrtValue`.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16
GRAPH_TYPE = "tensor(bfloat16)"


class _DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, with which a `DLManagedTensor` begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def from_triton(tensor: Any) -> NDArray[np.uint16]:
    """The bits of a `pb_utils.Tensor` in its own memory, which they keep alive."""
    capsule = tensor.to_dlpack()
    described = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    shape = tuple(described.shape[: described.ndim])
    return _at((described.data or 0) + described.byte_offset, shape, owner=capsule)


def to_dlpack(bits: NDArray[np.uint16]) -> onnxruntime.OrtValue:
    """A BF16 tensor that has `__dlpack__`, a copy of the array.

    A DLPack capsule keeps its `OrtValue` alive and that its own memory, but not a numpy array that it points into. So
    whoever takes the capsule, a response of Triton, owns the copy for as long as it needs it.
    """
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(bits.shape, ONNX_BFLOAT16)
    _bits_of(value)[...] = bits
    return value


def is_used(session: Any) -> bool:
    """Whether the graph has an input or an output of this type."""
    return any(tensor.type == GRAPH_TYPE for tensor in [*session.get_inputs(), *session.get_outputs()])


class Bfloat16Session:
    """A session that takes and gives BF16 tensors as arrays of uint16, and all others as they are."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs = {tensor.name for tensor in session.get_inputs() if tensor.type == GRAPH_TYPE}
        self._outputs = {tensor.name for tensor in session.get_outputs() if tensor.type == GRAPH_TYPE}

    def get_inputs(self) -> Any:
        """The graph's inputs."""
        return self._session.get_inputs()

    def run(self, names: Sequence[str], feed: dict[str, NDArray[Any]], options: Any = None) -> list[NDArray[Any]]:
        """The outputs of these names."""
        values = {name: self._value(name, array) for name, array in feed.items()}
        outputs = self._session.run_with_ort_values(list(names), values, options)
        return [
            _bits_of(output) if name in self._outputs else output.numpy()
            for name, output in zip(names, outputs, strict=True)
        ]

    def _value(self, name: str, array: NDArray[Any]) -> onnxruntime.OrtValue:
        if name in self._inputs:
            contiguous = np.ascontiguousarray(array)
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, ONNX_BFLOAT16)
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _bits_of(value: onnxruntime.OrtValue) -> NDArray[np.uint16]:
    """The memory of a BF16 value, which it keeps alive."""
    return _at(value.data_ptr(), tuple(value.shape()), owner=value)


def _at(address: int, shape: tuple[int, ...], owner: Any) -> NDArray[np.uint16]:
    """The array at an address, which keeps `owner` alive."""
    if 0 in shape:
        return np.empty(shape, dtype=np.uint16)
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]  # the array keeps `memory`
    return np.ctypeslib.as_array(memory).reshape(shape)
