"""Says in words what a node does to the batch axis: fix its size, reduce over it, mix its rows."""

from collections.abc import Callable, Mapping, Sequence

import onnx

from export.graph.onnx_graph import Net, attribute

Layout = Mapping[str, int]
"""Tensor -> its batch axis."""


def reason(net: Net, node: onnx.NodeProto, layout: Layout) -> str:
    """What `node` does to the batch axis: the end of a sentence that begins with the node's name."""
    axis = next((layout[name] for name in node.input if name in layout), 0)
    special = _REASONS.get(node.op_type)
    return (
        (special(net, node, axis) if special else None)
        or _by_axis(net, node, axis)
        or _by_constant(net, node, layout, axis)
        or f"mixes the rows of the batch: its output for a batch is not that for each row ({_inputs(node, layout)})"
    )


def _inputs(node: onnx.NodeProto, layout: Layout) -> str:
    return "it reads " + ", ".join(
        f"{name} (batch axis {layout[name]})" if name in layout else name for name in node.input if name
    )


def _reshape(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    shape = net.numbers(node, "shape", 1)
    if shape is None:
        return "reads a shape that is computed from a fixed number of rows"
    return f"has the constant shape {list(shape)}, which fixes the number of rows"


def _expand(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    shape = net.numbers(node, "", 1)
    return None if shape is None else f"has the constant shape {list(shape)}, which fixes the number of rows"


def _normalisation(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    if attribute(node, "training_mode", 0) or len(node.output) > 1:
        return (
            "is in training mode: it computes mean and variance over the batch, so every row changes the others. "
            "Export the model after .eval()"
        )
    return None


def _dropout(net: Net, node: onnx.NodeProto, axis: int) -> str:
    return "is in training mode: it drops values at random. Export the model after .eval()"


def _random(net: Net, node: onnx.NodeProto, axis: int) -> str:
    return "draws random numbers, so two runs of the same row differ. Draw them in the client, or remove it"


def _recurrent(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    wanted = 0 if attribute(node, "layout", 0) else 1
    if axis != wanted:
        return (
            f"reads axis {1 - wanted} as time and axis {wanted} as the batch. The batch is in axis {axis}, so rows are "
            "read as steps in time. Export with the batch first (torch: batch_first=True)"
        )
    return "has a constant initial state, which fixes the number of rows"


def _quantise(net: Net, node: onnx.NodeProto, axis: int) -> str:
    return (
        "uses one scale for the whole batch, so a row with large values makes the others less exact. Quantise "
        "statically, or accept the difference"
    )


def _matmul(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    if not any(name in net.constants for name in node.input):
        return "multiplies rows of the batch with one another (both inputs hold the batch)"
    return None


def _squeeze(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    axes = net.numbers(node, "axes", 1)
    if axes is None:
        return "removes every axis of size 1, so also the batch axis of a single row. Name its axes"
    return f"removes axis {axis}, the batch axis" if axis in axes else None


_REASONS: dict[str, Callable[[Net, onnx.NodeProto, int], str | None]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Squeeze": _squeeze,
    "MatMul": _matmul,
    "Gemm": _matmul,
    "BatchNormalization": _normalisation,
    "Dropout": _dropout,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "DynamicQuantizeLinear": _quantise,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _random),
    **dict.fromkeys(("Multinomial", "Bernoulli"), _random),
}

# What nodes that work along an axis do to it.
_VERBS = {
    "Softmax": "normalises over",
    "LogSoftmax": "normalises over",
    "Hardmax": "compares over",
    "LpNormalization": "normalises over",
    "CumSum": "adds up along",
    "TopK": "picks the largest along",
    "ArgMax": "picks the largest along",
    "ArgMin": "picks the smallest along",
    "Concat": "appends to",
    "Split": "cuts",
    "Slice": "cuts a fixed part out of",
    "Gather": "picks rows out of",
    "Flatten": "merges another axis into",
    "Compress": "picks rows out of",
    "Unique": "compares over",
    "ReverseSequence": "turns round",
}
_DEFAULT_AXES = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "TopK": -1, "LpNormalization": -1}


def _by_axis(net: Net, node: onnx.NodeProto, axis: int) -> str | None:
    kind = node.op_type
    if kind.startswith("Reduce"):
        axes = net.numbers(node, "axes", 1)
        if axes is None:
            return "reduces over all axes, the batch axis too"
        return f"reduces over axis {axis}, the batch axis" if axis in axes else None
    if kind not in _VERBS:
        return None
    changed: Sequence[int] | None
    if kind == "CumSum":
        changed = net.numbers(node, "", 1)
    elif kind == "Slice":
        changed = net.numbers(node, "axes", 3)
    else:
        changed = [attribute(node, "axis", _DEFAULT_AXES.get(kind, 0))]
    return f"{_VERBS[kind]} axis {axis}, the batch axis" if changed is not None and axis in changed else None


JOINS = {"Concat", "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Where", "And", "Or", "Equal", "Less", "Greater"}


def _by_constant(net: Net, node: onnx.NodeProto, layout: Layout, axis: int) -> str | None:
    if node.op_type not in JOINS:
        return None
    for name in node.input:
        size = list(net.constants[name].dims) if name in net.constants else []
        if len(size) > axis and name not in layout and (size[axis] > 1 or node.op_type == "Concat"):
            return f'joins the batch with the constant "{name}" of shape {size}, which fixes the number of rows'
    return None
