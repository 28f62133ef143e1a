"""Triton's data types: what config.pbtxt calls them, what onnxruntime calls them, and how numpy holds them."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Config = dict[str, Any]
"""A model configuration as Triton hands it to a Python model: the JSON form of `ModelConfig`."""

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


class GraphTensor(Protocol):
    """What this backend needs of an `onnxruntime.NodeArg`."""

    @property
    def name(self) -> str:
        """The tensor's name in the graph."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Its dimensions; a name or None where the graph leaves one open; empty for a scalar or an unknown rank."""

    @property
    def type(self) -> str:
        """Its type in onnxruntime's words, for example `tensor(float)`."""


def graph_shape(tensor: GraphTensor) -> list[int]:
    """The graph's dimensions with -1 for an open one, as the C++ backend sees them."""
    return [dim if isinstance(dim, int) else -1 for dim in tensor.shape]


def triton_type(tensor: GraphTensor) -> str:
    """The graph's type in config.pbtxt's words, or onnxruntime's own word for a type that Triton does not have."""
    return TRITON_TYPES.get(tensor.type, tensor.type)


def configured_dims(tensor: Config) -> list[int]:
    """The dims of a declared input or output as the graph sees them: its reshape where it has one."""
    dims = tensor["reshape"].get("shape", []) if tensor.get("reshape") is not None else tensor["dims"]
    return [int(dim) for dim in dims]


def shape_text(dims: Sequence[int]) -> str:
    """A shape as Triton writes it: [1,-1]."""
    return "[" + ",".join(map(str, dims)) + "]"


def name_list(tensors: Sequence[GraphTensor]) -> str:
    """Names in order of the alphabet, as Triton lists them."""
    return ", ".join(sorted(tensor.name for tensor in tensors))


def unsupported(tensors: Sequence[GraphTensor]) -> str | None:
    """What is wrong with the first input or output that is not a tensor, in the C++ backend's words, or None."""
    kinds = {"seq(": "SEQUENCE", "map(": "MAP", "sparse": "SPARSETENSOR", "opaque": "OPAQUE"}
    for tensor in tensors:
        if not tensor.type.startswith("tensor("):
            kind = next((name for start, name in kinds.items() if tensor.type.startswith(start)), "UNKNOWN")
            return (
                f"Unsupported ONNX Type 'ONNX_TYPE_{kind}' for I/O '{tensor.name}', expected 'ONNX_TYPE_TENSOR'. "
                f"It is a {tensor.type}: export the graph so that it takes and gives tensors only."
            )
    return None
