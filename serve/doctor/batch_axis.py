"""Which tensors of an ONNX graph hold one row of the batch per index of their first axis.

It follows the batch from the inputs through nodes that certainly keep it there, and forgets it at every other node.
So a rule that asks it misses graphs, but reports none wrongly.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import onnx
from onnx import TensorProto

SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")
UNARY = (
    *("Abs", "Cast", "Ceil", "Clip", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("Identity", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid"),
    *("Sign", "Sin", "Cos", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", *SOFTMAXES),
)
# Nodes with weights in their other inputs, that keep the number of axes.
WEIGHTED = (
    *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "LRN"),
    *("GroupNormalization", "InstanceNormalization", "LayerNormalization", "MaxPool", "PRelu"),
)
JOINING = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Where", "And", "Or", "Equal", "Less", "Greater")
MOST_NUMBERS = 64
"""More than the axes of any tensor."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The number of axes of each tensor with the rows in its first axis, and the small constants of the graph."""

    graph: onnx.GraphProto
    ranks: dict[str, int] = field(default_factory=dict)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: onnx.GraphProto, inputs: Iterable[str]) -> Self:
        """Follow the batch from `inputs`, whose first axis it is."""
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.output:
                constants.update((node.output[0], entry.t) for entry in node.attribute if entry.name == "value")
        names = set(inputs) - constants.keys()
        ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.input if value.name in names}
        rows = cls(graph=graph, ranks=ranks, constants=constants)
        for node in graph.node:
            rank = _RULES[node.op_type](rows, node) if node.op_type in _RULES and node.domain in DEFAULT else None
            if rank is not None and rank > 0:
                ranks |= dict.fromkeys((name for name in node.output if name), rank)
        return rows

    def numbers(self, node: onnx.NodeProto, name: str, index: int) -> Sequence[int] | None:
        """Whole numbers of a node: its attribute `name`, or its constant input `index`; None if they are computed."""
        written = next((list(entry.ints) for entry in node.attribute if entry.name == name), None)
        if written is not None or len(node.input) <= index:
            return written
        tensor = self.constants.get(node.input[index])
        if tensor is None or tensor.data_type != TensorProto.INT64 or math.prod(tensor.dims) > MOST_NUMBERS:
            return None
        raw = tensor.raw_data
        numbers = np.frombuffer(raw, dtype="<i8").tolist() if len(raw) % 8 == 0 and raw else list(tensor.int64_data)
        return numbers if len(numbers) == math.prod(tensor.dims) else None


def integer(node: onnx.NodeProto, name: str, default: int) -> int:
    """A whole number among the attributes of a node."""
    return next((int(entry.i) for entry in node.attribute if entry.name == name), default)


DEFAULT = ("", "ai.onnx")
Rule = Callable[[Rows, onnx.NodeProto], int | None]


def _same(rows: Rows, node: onnx.NodeProto) -> int | None:
    return rows.ranks.get(node.input[0]) if node.input else None


def _weighted(rows: Rows, node: onnx.NodeProto) -> int | None:
    return None if any(name in rows.ranks for name in node.input[1:]) else _same(rows, node)


def _joined(rows: Rows, node: onnx.NodeProto) -> int | None:
    """Broadcasting aligns shapes at the end, so a tensor with fewer axes would move its rows."""
    ranks = {rows.ranks[name] for name in node.input if name in rows.ranks}
    others = [rows.constants.get(name) for name in node.input if name not in rows.ranks]
    if len(ranks) != 1:
        return None
    (rank,) = ranks
    fits = [other is not None and (len(other.dims) < rank or list(other.dims[:1]) == [1]) for other in others]
    return rank if all(fits) and all(other is not None and len(other.dims) <= rank for other in others) else None


def _product(rows: Rows, node: onnx.NodeProto) -> int | None:
    if len(node.input) < 2:
        return None
    left, right = rows.ranks.get(node.input[0]), rows.ranks.get(node.input[1])
    weight = rows.constants.get(node.input[1])
    if left is not None and weight is not None and len(weight.dims) == 2 and left >= 2:
        return left
    return left if left is not None and left == right and left >= 3 else None


def _gemm(rows: Rows, node: onnx.NodeProto) -> int | None:
    return None if integer(node, "transA", 0) else _weighted(rows, node)


def _transposed(rows: Rows, node: onnx.NodeProto) -> int | None:
    order = rows.numbers(node, "perm", len(node.input))
    return _same(rows, node) if order and order[0] == 0 else None


def _reshaped(rows: Rows, node: onnx.NodeProto) -> int | None:
    shape = rows.numbers(node, "shape", 1)
    keeps = bool(shape) and shape is not None and shape[0] == 0 and not integer(node, "allowzero", 0)
    return len(shape or ()) if keeps and _same(rows, node) else None


def _flattened(rows: Rows, node: onnx.NodeProto) -> int | None:
    return 2 if _same(rows, node) and integer(node, "axis", 1) == 1 else None


def _unsqueezed(rows: Rows, node: onnx.NodeProto) -> int | None:
    rank, axes = _same(rows, node), rows.numbers(node, "axes", 1)
    if rank is None or axes is None:
        return None
    longer = rank + len(axes)
    return longer if all(axis % longer != 0 for axis in axes) else None


def _reduced(rows: Rows, node: onnx.NodeProto) -> int | None:
    rank, axes = _same(rows, node), rows.numbers(node, "axes", 1)
    if rank is None or not axes or any(axis % rank == 0 for axis in axes):
        return None
    return rank if node.op_type != "Squeeze" and integer(node, "keepdims", 1) else rank - len(axes)


def _concatenated(rows: Rows, node: onnx.NodeProto) -> int | None:
    ranks = {rows.ranks.get(name) for name in node.input}
    rank = _same(rows, node)
    return rank if rank is not None and len(ranks) == 1 and integer(node, "axis", 0) % rank != 0 else None


def _looked_up(rows: Rows, node: onnx.NodeProto) -> int | None:
    """Rows of a constant table, by index."""
    if len(node.input) < 2 or integer(node, "axis", 0) != 0:
        return None
    table, rank = rows.constants.get(node.input[0]), rows.ranks.get(node.input[1])
    return rank + len(table.dims) - 1 if table is not None and rank is not None else None


_RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, _same),
    **dict.fromkeys(WEIGHTED, _weighted),
    **dict.fromkeys(JOINING, _joined),
    "MatMul": _product,
    "Gemm": _gemm,
    "Transpose": _transposed,
    "Reshape": _reshaped,
    "Flatten": _flattened,
    "Unsqueeze": _unsqueezed,
    **dict.fromkeys(("Squeeze", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"), _reduced),
    "Concat": _concatenated,
    "Gather": _looked_up,
}
"""How many axes the outputs of a node have, whose first one is the batch; None if that is not certain."""
