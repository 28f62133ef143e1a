"""A graph with a fixed number of rows, rewritten to take any: dynamic first axes, and constants that name no row count.

Every change is right for the row count that the file was exported with; whether it is for others, the proof tells.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from export.graph.batch_culprit import Culprit
from export.graph.batch_layout import Shapes, follow
from export.graph.onnx_graph import Net, attribute, dims, graph_inputs, label

BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The new graph, the row count that the old one was fixed to, and what was changed, one line each."""

    model: onnx.ModelProto
    rows: int
    changes: tuple[str, ...]


def fixed_rows(model: onnx.ModelProto) -> int | None:
    """The row count that the inputs are fixed to; None when they are dynamic or fixed to different ones."""
    first = {dims(value)[0] for value in graph_inputs(model) if dims(value)}
    fixed = {dim for dim in first if isinstance(dim, int)}
    return fixed.pop() if len(fixed) == 1 else None


def loosen(model: onnx.ModelProto, shapes: Shapes) -> Rewritten:
    """Make the first axis of all inputs and outputs dynamic, and every constant shape that names the row count.

    `shapes` are those of the graph's tensors at its own row count.
    """
    rows = fixed_rows(model) or 1
    made = onnx.ModelProto()
    made.CopyFrom(model)
    changes = [*_open_axes(made, rows)]
    net, places = Net.of(model), follow(model, shapes)
    for node in made.graph.node:
        if node.op_type not in ("Reshape", "Expand") or (shape := net.numbers(node, "shape", 1)) is None:
            continue
        place, known = places.get(node.output[0]), shapes.get(node.output[0])
        axis = place.axis if place else None
        if node.op_type == "Reshape" and node.input[0] in places:
            changes += _reshape(made, node, list(known or shape), axis, rows)
        elif node.op_type == "Expand":
            changes += _expand(made, node, list(shape), axis or 0, rows)
    return Rewritten(model=made, rows=rows, changes=tuple(changes))


def mend(rewritten: Rewritten, culprit: Culprit) -> Rewritten | None:
    """Spread a constant of one row that the culprit joins with the batch; None when there is nothing to mend."""
    made = onnx.ModelProto()
    made.CopyFrom(rewritten.model)
    net = Net.of(made)
    node = next(one for one in made.graph.node if one.output[0] == culprit.node.output[0])
    repairs: dict[str, Callable[[], str | None]] = {
        "Concat": lambda: _spread_joined(made, net, node, rewritten.rows),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda: _spread_states(made, net, node, rewritten.rows)),
    }
    repair = repairs.get(node.op_type)
    change = repair() if repair is not None else None
    if change is None:
        return None
    return Rewritten(model=made, rows=rewritten.rows, changes=(*rewritten.changes, change))


def _open_axes(made: onnx.ModelProto, rows: int) -> Iterator[str]:
    for kind, values in (("input", graph_inputs(made)), ("output", list(made.graph.output))):
        for value in values:
            shape = value.type.tensor_type.shape
            if shape.dim and shape.dim[0].dim_value:
                yield f'{kind} "{value.name}": first axis {shape.dim[0].dim_value} -> {BATCH}'
            if shape.dim:
                shape.dim[0].dim_param = BATCH
    del made.graph.value_info[:]  # shapes of the tensors in between hold the old row count


def _reshape(
    made: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], axis: int | None, rows: int
) -> Iterator[str]:
    """Leave the axis that holds the rows to be computed; where it is not known, the first of exactly their number."""
    at = axis if axis is not None else next((index for index, size in enumerate(shape) if size == rows), 0)
    if at >= len(shape) or 0 in shape or (-1 in shape and shape[at] != -1):
        return  # a shape may leave one axis open only
    if shape[at] != -1:
        yield _with_shape(made, node, [*shape[:at], -1, *shape[at + 1 :]], shape)


def _expand(made: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], at: int, rows: int) -> Iterator[str]:
    """A size of 1 takes over that of the tensor, whatever it is."""
    if rows > 1 and at < len(shape) and shape[at] == rows:
        yield _with_shape(made, node, [*shape[:at], 1, *shape[at + 1 :]], shape)


def _with_shape(made: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], old: list[int]) -> str:
    name = f"{node.output[0]}/any_batch"
    made.graph.initializer.append(numpy_helper.from_array(np.array(shape, dtype=np.int64), name))
    told = label(node)
    node.input[1] = name
    return f"{told}: shape {old} -> {shape}"


def _spread_joined(made: onnx.ModelProto, net: Net, node: onnx.NodeProto, rows: int) -> str | None:
    if attribute(node, "axis", 0) == 0:
        return None
    for index, name in enumerate(node.input):
        if (size := _repeated(net, name, 0, rows)) is not None:
            node.input[index] = _spread(made, node, index, size, axis=0)
            return f'{label(node)}: the constant "{name}" of shape {size} is repeated for every row'
    return None


def _spread_states(made: onnx.ModelProto, net: Net, node: onnx.NodeProto, rows: int) -> str | None:
    """The initial states of a recurrent layer: inputs 5 and 6, shape (directions, batch, hidden)."""
    axis, changed = (0 if attribute(node, "layout", 0) else 1), []
    for index in (5, 6):
        name = node.input[index] if len(node.input) > index else ""
        if name and (size := _repeated(net, name, axis, rows)) is not None:
            node.input[index] = _spread(made, node, index, size, axis=axis)
            changed.append(name)
    return f"{label(node)}: its initial state {' and '.join(changed)} is repeated for every row" if changed else None


def _repeated(net: Net, name: str, axis: int, rows: int) -> list[int] | None:
    """The shape of a constant that is the same for each of its `rows` rows on `axis`; None for anything else."""
    value = net.constant(name)
    if value is None:
        maker = net.makers.get(name)
        if maker is not None and maker.op_type == "Expand":  # an exporter spread it; `loosen` set its rows to 1
            return _repeated(net, maker.input[0], axis, 1)
        return None
    if value.ndim <= axis or value.shape[axis] not in (1, rows):
        return None
    return list(value.shape) if (value == value.take([0], axis)).all() else None


def _spread(made: onnx.ModelProto, node: onnx.NodeProto, index: int, size: list[int], *, axis: int) -> str:
    """Nodes before `node` that repeat its input `index` along `axis` once for each row; the new tensor's name."""
    name, prefix = node.input[index], f"{node.output[0]}/{index}"
    constants = {"zero": [0], "one": [1], "axis": [axis], "before": size[:axis], "after": size[axis + 1 :]}
    held = {key: f"{prefix}/{key}" for key, values in constants.items() if values}
    for key, held_name in held.items():
        array = np.array(constants[key], dtype=np.int64)
        made.graph.initializer.append(numpy_helper.from_array(array, held_name))
    parts = [name for name in (held.get("before"), f"{prefix}/rows", held.get("after")) if name]
    nodes = [
        helper.make_node("Slice", [name, held["zero"], held["one"], held["axis"]], [f"{prefix}/first"]),
        helper.make_node("Shape", [graph_inputs(made)[0].name], [f"{prefix}/shape"]),
        helper.make_node("Gather", [f"{prefix}/shape", held["zero"]], [f"{prefix}/rows"], axis=0),
        helper.make_node("Concat", parts, [f"{prefix}/wanted"], axis=0),
        helper.make_node("Expand", [f"{prefix}/first", f"{prefix}/wanted"], [f"{prefix}/spread"]),
    ]
    at = next(place for place, other in enumerate(made.graph.node) if other.output[0] == node.output[0])
    for offset, added in enumerate(nodes):
        made.graph.node.insert(at + offset, added)
    return f"{prefix}/spread"
