"""Handles TYPE_BF16 tensors, which numpy does not have, as arrays of uint16 with the same bits.

Triton's Python interface has them only as DLPack capsules, onnxruntime's only as `OrtValue`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from dlpack import array_at, array_of
from numpy.typing import NDArray

ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16
GRAPH_TYPE = "tensor(bfloat16)"


def from_triton(tensor: Any) -> NDArray[np.uint16]:
    """The bits of a `pb_utils.Tensor`: a view that keeps the tensor's memory alive."""
    return array_of(tensor, np.uint16)


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
    return array_at(value.data_ptr(), tuple(value.shape()), np.uint16, owner=value)
