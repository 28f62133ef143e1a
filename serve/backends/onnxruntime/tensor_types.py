"""Triton's data types: their names in config.pbtxt and in onnxruntime, their numpy types, and texts as bytes or str."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Config = dict[str, Any]
"""A model configuration as a Python model gets it from Triton: the JSON form of `ModelConfig`."""

TRITON_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    **{f"tensor({sign}int{bits})": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "tensor(bfloat16)": "TYPE_BF16",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
"""Triton's name of each type by onnxruntime's."""

NUMPY_TYPES = {"TYPE_INT32": np.dtype(np.int32), "TYPE_FP32": np.dtype(np.float32)}
"""The two types that a batch input may have."""


class ContractError(ValueError):
    """The graph and the configuration disagree, so the model must not load."""


class RequestError(ValueError):
    """A request that the model does not take: its client is to blame."""


class TextError(RequestError):
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
