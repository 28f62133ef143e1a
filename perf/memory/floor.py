"""The least memory that a graph needs for a batch, from its shapes alone: its weights and its largest set of tensors.

A tensor is live from the node that writes it to the last one that reads it. A node of `IN_PLACE` overwrites an input
of the same size that nobody reads later, one of `ALIASES` returns its input. Inputs and outputs of the graph belong to
the requests and are live until the end. How onnxruntime reuses buffers decides how much more it takes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from export.graph.onnx_graph import label

Shape = tuple[int, ...]
ALIASES = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Element by element, or fused into the node before by onnxruntime.
IN_PLACE = frozenset(
    {
        *("Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp"),
        *("Floor", "Gelu", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Mish"),
        *("Mul", "Neg", "Not", "Pow", "PRelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sin", "Softmax"),
        *("Softplus", "Softsign", "Sqrt", "Sub", "Tanh", "Trilu", "Where"),
    }
)
HALF_BYTE = frozenset({TensorProto.INT4, TensorProto.UINT4})
# Weights below this size can decide a shape, so shape inference gets their data.
SMALL_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Bytes of the constants, and of the largest set of tensors that are live together, in the node named `node`.

    `largest` are the tensors of that set by size, `unknown` is the number of tensors that no inference gives a shape:
    they count nothing.
    """

    weights: int
    live: int
    node: str
    largest: tuple[tuple[str, int], ...]
    unknown: int

    @property
    def nbytes(self) -> int:
        """Weights and live tensors."""
        return self.weights + self.live


def floor(file: Path, inputs: Mapping[str, Shape]) -> Floor:
    """The floor of an ONNX file for these shapes of its inputs; an input that is not named keeps its own shape."""
    graph = _inferred(file, inputs)
    weights = {tensor.name: _nbytes(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    values = [*graph.input, *graph.value_info, *graph.output]
    constants = _constants(graph, weights)
    sizes = {value.name: size for value in values if (size := _size(value)) is not None and value.name not in constants}
    made = [name for node in graph.node for name in node.output if name and name not in constants]
    sets = list(_live_sets(graph, sizes))
    peak = max(sets, key=lambda each: each[1], default=("", 0, {}))
    return Floor(
        weights=sum(weights.values()),
        live=peak[1],
        node=peak[0],
        largest=tuple(sorted(peak[2].items(), key=lambda item: -item[1])),
        unknown=sum(name not in sizes for name in made),
    )


def _constants(graph: onnx.GraphProto, weights: Iterable[str]) -> set[str]:
    """The weights, and what onnxruntime computes from them alone when it loads the graph."""
    constants = set(weights)
    for node in graph.node:
        if all(name in constants for name in node.input if name):
            constants.update(node.output)
    return constants


def _live_sets(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> Iterator[tuple[str, int, dict[str, int]]]:
    """For each node that is larger than all before it: its name, and the buffers that are live while it runs."""
    last = {name: at for at, node in enumerate(graph.node) for name in _read(node)}
    edges = [value.name for value in [*graph.input, *graph.output] if value.name in sizes]
    last |= dict.fromkeys(edges, len(graph.node))
    live = {value.name: sizes[value.name] for value in graph.input if value.name in sizes}
    buffer = {name: name for name in live}
    ends = {name: last[name] for name in live}
    total, most = sum(live.values()), 0
    for at, node in enumerate(graph.node):
        for name in node.output:
            if name not in sizes:
                continue
            shared = _shared(node, at, sizes[name], buffer, ends, live)
            buffer[name] = shared or name
            if not shared:
                live[name] = sizes[name]
                total += sizes[name]
            ends[buffer[name]] = max(ends.get(buffer[name], at), last.get(name, at))
        if total > most:
            most = total
            yield label(node), total, dict(live)
        for name in [name for name in live if ends[name] <= at]:
            total -= live.pop(name)


def _shared(
    node: onnx.NodeProto,
    at: int,
    size: int,
    buffer: Mapping[str, str],
    ends: Mapping[str, int],
    live: Mapping[str, int],
) -> str:
    """The buffer of an input that holds the node's output as well; empty if none does."""
    if node.op_type in ALIASES:
        return buffer.get(node.input[0], "")
    if node.op_type not in IN_PLACE:
        return ""
    held = (buffer[name] for name in node.input if name in buffer)
    return next((name for name in held if ends[name] == at and live[name] == size), "")


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, with all that is named in its branches and bodies."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)
        yield from (value.name for value in attribute.g.output)


def _inferred(file: Path, inputs: Mapping[str, Shape]) -> onnx.GraphProto:
    model = onnx.load(file, load_external_data=False)
    for tensor in model.graph.initializer:
        if _nbytes(tensor.data_type, tuple(tensor.dims)) > SMALL_BYTES:
            tensor.ClearField("raw_data")
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, inputs.get(value.name, ()), strict=False):
            dim.dim_value = size
    del model.graph.value_info[:]  # the exporter's shapes, of other batches
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return onnx.shape_inference.infer_shapes(model, data_prop=True).graph


def _size(value: onnx.ValueInfoProto) -> int | None:
    """Bytes of a tensor; None if a dimension is open."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return _nbytes(tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))


def _nbytes(kind: int, shape: Shape) -> int:
    if kind in HALF_BYTE:
        return (prod(shape) + 1) // 2
    return prod(shape) * int(helper.tensor_dtype_to_np_dtype(kind).itemsize)
