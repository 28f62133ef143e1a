"""The signature of an ONNX file: names, types and shapes of its inputs and outputs, and the check of config.pbtxt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import onnx
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.graph_contract import Fault, Graph, Tensor, faults
from triton_batching.terminal import Mistake

__all__ = ["Fault", "Signature", "SignatureError", "Tensor", "check"]

# onnx element type -> Triton data type
TYPES: dict[int, str] = {
    onnx.TensorProto.BOOL: "TYPE_BOOL",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.UINT16: "TYPE_UINT16",
    onnx.TensorProto.UINT32: "TYPE_UINT32",
    onnx.TensorProto.UINT64: "TYPE_UINT64",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT16: "TYPE_INT16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.BFLOAT16: "TYPE_BF16",
    onnx.TensorProto.STRING: "TYPE_STRING",
}


class SignatureError(Mistake):
    """The file is not a readable ONNX model."""


class Signature(Graph):
    """The inputs and outputs of one ONNX file."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the graph without its external weights; raises `SignatureError`."""
        try:
            return cls.of_graph(onnx.load(path, load_external_data=False).graph)
        except (OSError, DecodeError) as error:
            raise SignatureError(f"{path}: not a readable ONNX file ({error}). Export it again.") from error

    @classmethod
    def of_graph(cls, graph: onnx.GraphProto) -> Self:
        """The signature of a graph."""
        values = {tensor.name for tensor in graph.initializer}
        inputs = {value.name: _tensor(value) for value in graph.input}
        return cls(
            inputs={name: tensor for name, tensor in inputs.items() if name not in values},
            outputs={value.name: _tensor(value) for value in graph.output},
            defaults={name: tensor for name, tensor in inputs.items() if name in values},
        )


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    tensor = value.type.tensor_type
    # Some exporters write a negative number for an open dimension.
    shape = tuple(max(dim.dim_value, -1) if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    name = TYPES.get(tensor.elem_type) or onnx.TensorProto.DataType.Name(tensor.elem_type)
    return Tensor(type=name, shape=shape, ranked=tensor.HasField("shape"))


def check(config: ModelConfig, signature: Signature) -> Iterator[Fault]:
    """Every difference between config.pbtxt and the graph, in the words of the backend that refuses it."""
    return faults(json_format.MessageToDict(config, preserving_proto_field_name=True), signature)
