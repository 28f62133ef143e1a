"""Rewrites a graph with a fixed number of rows to take any: dynamic first axes, and no constant that names a row count.

Every change keeps the answers for the exported row count. The proof shows whether it is right for other counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from export.graph.culprit import Culprit
from export.graph.layout import Shapes, follow
from export.graph.onnx_graph import Net, attribute, dims, graph_inputs, label

BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The new graph, the row count that the old one was fixed to, and one line for each change."""

    model: onnx.ModelProto
    rows: int
    changes: tuple[str, ...]


def fixed_rows(model: onnx.ModelProto) -> int | None:
    """The row count that the inputs are fixed to; None if they are dynamic or fixed to different counts."""
    first = {dims(value)[0] for value in graph_inputs(model) if dims(value)}
    fixed = {dim for dim in first if isinstance(dim, int)}
    return fixed.pop() if len(fixed) == 1 else None


def loosen(model: onnx.ModelProto, shapes: Shapes) -> Rewritten:
    """Make the first axis of all inputs and outputs dynamic, and every constant shape that names the row count.

    `shapes` are those of the graph's tensors at its own row count.
    """
    rows = fixed_rows(model) or 1
    copy = _copied(model)
    changes = [*_open_axes(copy)]
    net, places = Net.of(model), follow(model, shapes)
    for node in copy.graph.node:
        if node.op_type not in ("Reshape", "Expand") or (shape := net.numbers(node, "shape", 1)) is None:
            continue
        place, output_shape = places.get(node.output[0]), shapes.get(node.output[0])
        axis = place.axis if place else None
        if node.op_type == "Reshape" and node.input[0] in places:
            changes += _reshape(copy, node, list(output_shape or shape), axis, rows)
        elif node.op_type == "Expand":
            changes += _expand(copy, node, list(shape), axis or 0, rows)
    return Rewritten(model=copy, rows=rows, changes=tuple(changes))


def mend(rewritten: Rewritten, culprit: Culprit) -> Rewritten | None:
    """Repeat a constant that the culprit joins with the batch for every row; None if the culprit joins none."""
    copy = _copied(rewritten.model)
    net = Net.of(copy)
    node = next(node for node in copy.graph.node if node.output[0] == culprit.node.output[0])
    repairs: dict[str, Callable[[], str | None]] = {
        "Concat": lambda: _spread_joined(copy, net, node, rewritten.rows),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda: _spread_states(copy, net, node, rewritten.rows)),
    }
    repair = repairs.get(node.op_type)
    change = repair() if repair is not None else None
    if change is None:
        return None
    return Rewritten(model=copy, rows=rewritten.rows, changes=(*rewritten.changes, change))


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _open_axes(model: onnx.ModelProto) -> Iterator[str]:
    for kind, values in (("input", graph_inputs(model)), ("output", list(model.graph.output))):
        for value in values:
            shape = value.type.tensor_type.shape
            if shape.dim and shape.dim[0].dim_value:
                yield f'{kind} "{value.name}": first axis {shape.dim[0].dim_value} -> {BATCH}'
            if shape.dim:
                shape.dim[0].dim_param = BATCH
    del model.graph.value_info[:]  # the shapes of the tensors in between have the old row count


def _reshape(
    model: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], axis: int | None, rows: int
) -> Iterator[str]:
    """Write -1 for the batch axis; if it is not known, for the first axis of exactly `rows` elements."""
    if axis is None:
        axis = next((index for index, size in enumerate(shape) if size == rows), 0)
    if axis >= len(shape) or 0 in shape or (-1 in shape and shape[axis] != -1):
        return  # a shape may have one -1 only
    if shape[axis] != -1:
        yield _with_shape(model, node, [*shape[:axis], -1, *shape[axis + 1 :]], shape)


def _expand(model: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], axis: int, rows: int) -> Iterator[str]:
    """Write 1 for the batch axis: Expand then keeps the size that the tensor has."""
    if rows > 1 and axis < len(shape) and shape[axis] == rows:
        yield _with_shape(model, node, [*shape[:axis], 1, *shape[axis + 1 :]], shape)


def _with_shape(model: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], old: list[int]) -> str:
    name = f"{node.output[0]}/any_batch"
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape, dtype=np.int64), name))
    node.input[1] = name
    return f"{label(node)}: shape {old} -> {shape}"


def _spread_joined(model: onnx.ModelProto, net: Net, node: onnx.NodeProto, rows: int) -> str | None:
    if attribute(node, "axis", 0) == 0:
        return None
    for index, name in enumerate(node.input):
        if (size := _repeated(net, name, 0, rows)) is not None:
            node.input[index] = _spread(model, node, index, size, axis=0)
            return f'{label(node)}: the constant "{name}" of shape {size} is repeated for every row'
    return None


def _spread_states(model: onnx.ModelProto, net: Net, node: onnx.NodeProto, rows: int) -> str | None:
    """The initial states of a recurrent layer: inputs 5 and 6, shape (directions, batch, hidden)."""
    axis, changed = (0 if attribute(node, "layout", 0) else 1), []
    for index in (5, 6):
        name = node.input[index] if len(node.input) > index else ""
        if name and (size := _repeated(net, name, axis, rows)) is not None:
            node.input[index] = _spread(model, node, index, size, axis=axis)
            changed.append(name)
    return f"{label(node)}: its initial state {' and '.join(changed)} is repeated for every row" if changed else None


def _repeated(net: Net, name: str, axis: int, rows: int) -> list[int] | None:
    """The shape of a constant that is the same for each of its `rows` rows on `axis`; None for other tensors."""
    value = net.constant(name)
    if value is None:
        maker = net.makers.get(name)
        if maker is not None and maker.op_type == "Expand":  # the exporter expanded it; `loosen` set its rows to 1
            return _repeated(net, maker.input[0], axis, 1)
        return None
    if value.ndim <= axis or value.shape[axis] not in (1, rows):
        return None
    return list(value.shape) if (value == value.take([0], axis)).all() else None


def _spread(model: onnx.ModelProto, node: onnx.NodeProto, index: int, size: list[int], *, axis: int) -> str:
    """Insert nodes that repeat input `index` of `node` along `axis` for every row; returns the new tensor's name."""
    name, prefix = node.input[index], f"{node.output[0]}/{index}"
    constants = {"zero": [0], "one": [1], "axis": [axis], "before": size[:axis], "after": size[axis + 1 :]}
    names = {key: f"{prefix}/{key}" for key, values in constants.items() if values}
    for key, constant_name in names.items():
        array = np.array(constants[key], dtype=np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, constant_name))
    parts = [part for part in (names.get("before"), f"{prefix}/rows", names.get("after")) if part]
    nodes = [
        helper.make_node("Slice", [name, names["zero"], names["one"], names["axis"]], [f"{prefix}/first"]),
        helper.make_node("Shape", [graph_inputs(model)[0].name], [f"{prefix}/shape"]),
        helper.make_node("Gather", [f"{prefix}/shape", names["zero"]], [f"{prefix}/rows"], axis=0),
        helper.make_node("Concat", parts, [f"{prefix}/wanted"], axis=0),
        helper.make_node("Expand", [f"{prefix}/first", f"{prefix}/wanted"], [f"{prefix}/spread"]),
    ]
    position = next(number for number, other in enumerate(model.graph.node) if other.output[0] == node.output[0])
    for offset, added in enumerate(nodes):
        model.graph.node.insert(position + offset, added)
    return f"{prefix}/spread"
