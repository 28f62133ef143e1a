"""Follows the batch axis from the inputs through a graph of known shapes to every other tensor."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from export.graph.onnx_graph import Net, attribute, graph_inputs

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the rows are: in `axis`, with `ahead` elements of another axis merged before them (time x batch)."""

    axis: int
    ahead: int = 1


def follow(model: onnx.ModelProto, shapes: Shapes) -> dict[str, Place]:
    """Tensor name -> where its rows are, for every tensor to which the batch axis can be followed."""
    net = Net.of(model)
    places = {value.name: Place(axis=0) for value in graph_inputs(model)}
    for node in model.graph.node:
        source = next((name for name in node.input if name in places), None)
        if source is None or node.op_type in ("Shape", "Size"):
            continue
        for index, name in enumerate(node.output):
            place = _place(net, node, places[source], source, index, shapes)
            if place is not None:
                places[name] = place
    return places


def reshaped(place: Place, before: Sequence[int], after: Sequence[int], rows: int) -> Place | None:
    """Where the rows are after a reshape from shape `before` to `after`: the number of elements before them stays.

    With one row several axes may fit. An axis of exactly the row count is the likeliest; the last axis, which holds
    features, is the least likely.
    """
    ahead = math.prod(before[: place.axis]) * place.ahead
    starts = [math.prod(after[:axis]) for axis in range(len(after))]
    fitting = [
        axis
        for axis, (start, size) in enumerate(zip(starts, after, strict=True))
        if start and ahead % start == 0 and ahead * rows <= start * size and size % rows == 0
    ]
    if not fitting:
        return None
    best = max(fitting, key=lambda axis: (after[axis] == rows and starts[axis] == ahead, axis + 1 < len(after), axis))
    return Place(axis=best, ahead=ahead // starts[best])


def _place(net: Net, node: onnx.NodeProto, place: Place, source: str, output: int, shapes: Shapes) -> Place | None:
    if node.op_type in ("Reshape", "Flatten"):
        if source not in shapes or node.output[0] not in shapes:
            return None
        rows = shapes[graph_inputs(net.model)[0].name][0]
        return reshaped(place, shapes[source], shapes[node.output[0]], rows)
    axis = _RULES.get(node.op_type, _same)(net, node, place.axis, source, output, shapes)
    return None if axis is None or axis < 0 else Place(axis=axis, ahead=place.ahead)


Rule = Callable[[Net, onnx.NodeProto, int, str, int, Shapes], int | None]


def _same(net: Net, node: onnx.NodeProto, axis: int, source: str, output: int, shapes: Shapes) -> int | None:
    """Most nodes keep their axes; those that broadcast align shapes at the end."""
    if source in shapes and node.output[output] in shapes:
        return axis + len(shapes[node.output[output]]) - len(shapes[source])
    return axis


def _transpose(net: Net, node: onnx.NodeProto, axis: int, source: str, output: int, shapes: Shapes) -> int | None:
    order = attribute(node, "perm")
    if order is None:
        return len(shapes[source]) - 1 - axis if source in shapes else None
    return list(order).index(axis)


def _removed(net: Net, node: onnx.NodeProto, axis: int, source: str, output: int, shapes: Shapes) -> int | None:
    """Squeeze, and reductions that do not keep their axes."""
    if attribute(node, "keepdims", 1 if node.op_type != "Squeeze" else 0):
        return axis
    axes = net.numbers(node, "axes", 1)
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = [attribute(node, "axis", 0)]
    if source not in shapes or axes is None:
        return None
    rank = len(shapes[source])
    return axis - sum(1 for removed in axes if removed % rank < axis)


def _added(net: Net, node: onnx.NodeProto, axis: int, source: str, output: int, shapes: Shapes) -> int | None:
    axes = net.numbers(node, "axes", 1)
    if axes is None or node.output[0] not in shapes:
        return None
    rank = len(shapes[node.output[0]])
    new = {added % rank for added in axes}
    return [index for index in range(rank) if index not in new][axis]


def _gathered(net: Net, node: onnx.NodeProto, axis: int, source: str, output: int, shapes: Shapes) -> int | None:
    """Gather: the axes of the indices replace one axis of the data."""
    replaced: int = attribute(node, "axis", 0)
    if source != node.input[0]:
        return replaced + axis
    if replaced >= axis or node.output[0] not in shapes or source not in shapes:
        return axis
    return axis + len(shapes[node.output[0]]) - len(shapes[source])


def _recurrent(net: Net, node: onnx.NodeProto, axis: int, source: str, output: int, shapes: Shapes) -> int | None:
    if attribute(node, "layout", 0):
        return 0
    return 2 if output == 0 else 1


_RULES: dict[str, Rule] = {
    "Transpose": _transpose,
    "Unsqueeze": _added,
    "Gather": _gathered,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(
        ("Squeeze", "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), _removed
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), _removed),
}
