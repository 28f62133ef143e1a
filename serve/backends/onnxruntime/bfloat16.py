"""Handles TYPE_BF16 tensors, which numpy does not have, as arrays of uint16 with the same bits.

Triton's Python interface has them only as DLPack capsules, onnxruntime's only as `OrtValue`.
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
    """`DLTensor` of dlpack.h, the first field of a `DLManagedTensor`."""

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
    """The bits of a `pb_utils.Tensor`: a view that keeps the tensor's memory alive."""
    capsule = tensor.to_dlpack()
    header = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    shape = tuple(header.shape[: header.ndim])
    return _at((header.data or 0) + header.byte_offset, shape, owner=capsule)


def to_dlpack(bits: NDArray[np.uint16]) -> onnxruntime.OrtValue:
    """A copy of the array as a BF16 tensor that has `__dlpack__`.

    A DLPack capsule keeps its `OrtValue` and the memory of that alive, but not a numpy array. So the response that
    takes the capsule owns the copy.
    """
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(bits.shape, ONNX_BFLOAT16)
    _bits_of(value)[...] = bits
    return value


def is_used(session: Any) -> bool:
    """Whether the graph has an input or an output of this type."""
    return any(tensor.type == GRAPH_TYPE for tensor in [*session.get_inputs(), *session.get_outputs()])


class Bfloat16Session:
    """A session whose BF16 inputs and outputs are arrays of uint16."""

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
    """The bits of a BF16 value: a view that keeps the value alive."""
    return _at(value.data_ptr(), tuple(value.shape()), owner=value)


def _at(address: int, shape: tuple[int, ...], owner: Any) -> NDArray[np.uint16]:
    """An array of the memory at `address`; it keeps `owner` alive."""
    if 0 in shape:
        return np.empty(shape, dtype=np.uint16)
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]  # the array keeps `memory`
    return np.ctypeslib.as_array(memory).reshape(shape)
