"""onnxruntime's file format (.ort): each node's index, and each tensor's type and shape as the planner sees them.

onnxruntime ships the flatbuffers readers for its own tools. They are imported by their path, because the package of the
tools imports torch if it is installed, which takes seconds.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

sys.path.append(str(Path(onnxruntime.__file__).parent / "tools" / "ort_format_model"))

from ort_flatbuffers_py.fbs.DimensionValueType import DimensionValueType  # type: ignore[import-not-found]
from ort_flatbuffers_py.fbs.Graph import Graph  # type: ignore[import-not-found]
from ort_flatbuffers_py.fbs.InferenceSession import InferenceSession  # type: ignore[import-not-found]
from ort_flatbuffers_py.fbs.TensorTypeAndShape import TensorTypeAndShape  # type: ignore[import-not-found]
from ort_flatbuffers_py.fbs.TypeInfo import TypeInfo  # type: ignore[import-not-found]
from ort_flatbuffers_py.fbs.TypeInfoValue import TypeInfoValue  # type: ignore[import-not-found]

Dims = tuple[int | str | None, ...]
"""A shape: each dimension is a number, the name of a dynamic dimension, or None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One tensor: its ONNX element type (None if the value is no tensor) and its shape (None if unknown)."""

    type: int | None
    dims: Dims | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`indices` maps the first output of a node to the node's index, `values` a tensor's name to its `Value`."""

    indices: Mapping[str, int]
    values: Mapping[str, Value]

    @classmethod
    def of(cls, data: bytes) -> "Layout":
        """Read the main graph of a file's bytes."""
        graph: Graph = InferenceSession.GetRootAsInferenceSession(bytearray(data), 0).Model().Graph()
        indices = {}
        for node in (graph.Nodes(at) for at in range(graph.NodesLength())):
            outputs = [node.Outputs(at).decode() for at in range(node.OutputsLength())]
            indices[next(name for name in outputs if name)] = node.Index()
        arguments = (graph.NodeArgs(at) for at in range(graph.NodeArgsLength()))
        return cls(indices=indices, values={arg.Name().decode(): _value(arg.Type()) for arg in arguments})


def _value(info: TypeInfo | None) -> Value:
    if info is None or info.ValueType() != TypeInfoValue.tensor_type:
        return Value(type=None, dims=None)
    table, tensor = info.Value(), TensorTypeAndShape()
    tensor.Init(table.Bytes, table.Pos)
    shape = tensor.Shape()
    dims = None if shape is None else tuple(_dim(shape.Dim(at).Value()) for at in range(shape.DimLength()))
    return Value(type=tensor.ElemType(), dims=dims)


def _dim(value: Any) -> int | str | None:
    kind = value.DimType()
    if kind == DimensionValueType.VALUE:
        return int(value.DimValue())
    name = value.DimParam()
    return name.decode() if kind == DimensionValueType.PARAM and name else None
