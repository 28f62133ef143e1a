"""Triton's data types: their names in config.pbtxt and in onnxruntime, their numpy types, and texts as bytes or str."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Config = dict[str, Any]
"""A model configuration as a Python model gets it from Triton: the JSON form of `ModelConfig`."""

ONNX_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_BF16": "tensor(bfloat16)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}
TRITON_TYPES = {onnx: triton for triton, onnx in ONNX_TYPES.items()}

NUMPY_TYPES = {"TYPE_INT32": np.dtype(np.int32), "TYPE_FP32": np.dtype(np.float32)}
"""The two types that a batch input may have."""


class ContractError(ValueError):
    """The graph and the configuration disagree, so the model must not load."""


class TextError(ValueError):
    """Bytes that onnxruntime's Python interface cannot take."""


class GraphTensor(Protocol):
    """The part of `onnxruntime.NodeArg` that this backend uses."""

    @property
    def name(self) -> str:
        """The tensor's name in the graph."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Its dimensions, a name or None for an open one; empty for a scalar or an unknown rank."""

    @property
    def type(self) -> str:
        """Its type in onnxruntime's notation, for example `tensor(float)`."""


def graph_shape(tensor: GraphTensor) -> list[int]:
    """The graph's dimensions, with -1 for an open one, as in the C++ backend."""
    return [dim if isinstance(dim, int) else -1 for dim in tensor.shape]


def triton_type(tensor: GraphTensor) -> str:
    """The graph's type as in config.pbtxt; onnxruntime's name for a type that Triton does not have."""
    return TRITON_TYPES.get(tensor.type, tensor.type)


def configured_dims(tensor: Config) -> list[int]:
    """The dims of a declared input or output in the graph: its reshape if it has one, else its dims."""
    dims = tensor["reshape"].get("shape", []) if tensor.get("reshape") is not None else tensor["dims"]
    return [int(dim) for dim in dims]


def shape_text(dims: Sequence[int]) -> str:
    """A shape as Triton writes it: [1,-1]."""
    return "[" + ",".join(map(str, dims)) + "]"


def name_list(tensors: Sequence[GraphTensor]) -> str:
    """Names in alphabetical order, as in Triton's messages."""
    return ", ".join(sorted(tensor.name for tensor in tensors))


def unsupported(tensors: Sequence[GraphTensor]) -> str | None:
    """The error for the first input or output that is not a tensor, in the C++ backend's words; None if all are."""
    kinds = {"seq(": "SEQUENCE", "map(": "MAP", "sparse": "SPARSETENSOR", "opaque": "OPAQUE"}
    for tensor in tensors:
        if not tensor.type.startswith("tensor("):
            kind = next((name for start, name in kinds.items() if tensor.type.startswith(start)), "UNKNOWN")
            return (
                f"Unsupported ONNX Type 'ONNX_TYPE_{kind}' for I/O '{tensor.name}', expected 'ONNX_TYPE_TENSOR'. "
                f"It is a {tensor.type}: export the graph so that it takes and gives tensors only."
            )
    return None


def to_text(name: str, array: NDArray[Any]) -> NDArray[np.object_]:
    """Bytes to str, same shape; raises `TextError` for bytes that are not UTF-8.

    Unlike in the C++ backend, which uses C strings, a text may have zero bytes.
    """
    try:
        return _elementwise(array, [element.decode() for element in array.flat])
    except UnicodeDecodeError as error:
        raise TextError(
            f"input '{name}' holds bytes that are not UTF-8 ({error}), which onnxruntime's Python interface cannot "
            "take. Send UTF-8 text, or declare the tensor as TYPE_UINT8."
        ) from error


def to_bytes(array: NDArray[Any]) -> NDArray[np.object_]:
    """Str to bytes, same shape."""
    return _elementwise(array, [element.encode() for element in array.flat])


def _elementwise(like: NDArray[Any], elements: list[Any]) -> NDArray[np.object_]:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(like.shape)
