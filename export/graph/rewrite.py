"""Rewrites a graph that runs a fixed number of rows to take any: open first axes, and no constant of a row count.

Every change keeps the answers for the exported row count. The proof shows whether it is right for other counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from export.graph.axis_proof import run
from export.graph.changed import guarded_session_of
from export.graph.culprit import Culprit
from export.graph.layout import Shapes, follow
from export.graph.onnx_graph import Net, attribute, dims, graph_inputs, label
from export.graph.reason import JOINS
from triton_batching.terminal import Mistake

BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The graph, a row count that it ran before, and one line for each change."""

    model: onnx.ModelProto
    rows: int
    changes: tuple[str, ...] = ()


def fixed_rows(model: onnx.ModelProto) -> int | None:
    """The row count that the inputs are fixed to; None if they are dynamic or fixed to different counts."""
    first = {dims(value)[0] for value in graph_inputs(model) if dims(value)}
    fixed = {dim for dim in first if isinstance(dim, int)}
    return fixed.pop() if len(fixed) == 1 else None


def loosen(model: onnx.ModelProto, shapes: Shapes, rows: int) -> Rewritten:
    """Make the first axis of all inputs and outputs dynamic, and every constant shape that names the row count.

    `shapes` are those of the graph's tensors at `rows` rows, which it runs.
    """
    copy = _copied(model)
    changes = [*_open_axes(copy)]
    net, places = Net.of(model), follow(model, shapes)
    for node in copy.graph.node:
        if node.op_type not in ("Reshape", "Expand") or (shape := net.numbers(node, "shape", 1)) is None:
            continue
        place, before = places.get(node.output[0]), places.get(node.input[0])
        if node.op_type == "Expand":
            changes += _expand(copy, node, list(shape), place.axis if place else 0, rows)
        elif before is not None:
            sizes = shapes.get(node.output[0], shape)
            # Where the batch is not followed, it is the first axis of exactly so many elements.
            axis = place.axis if place else next((index for index, size in enumerate(sizes) if size == rows), 0)
            changes += _reshape(copy, node, list(shape), axis, list(sizes), stays=place == before)
    return Rewritten(model=copy, rows=rows, changes=tuple(changes))


def mend(rewritten: Rewritten, culprit: Culprit) -> Rewritten | None:
    """Repeat a constant that the culprit joins with the batch for every row; None if the culprit joins none.

    A tensor that depends on no input is a constant too, as Tile and ConstantOfShape make it.
    """
    copy = _copied(rewritten.model)
    net = Net.of(copy)
    node = next(node for node in copy.graph.node if node.output[0] == culprit.node.output[0])
    change = None
    if node.op_type in JOINS:
        change = _spread_joined(copy, net, node, rewritten.rows)
    elif node.op_type in ("LSTM", "GRU", "RNN"):
        change = _spread_states(copy, net, node, rewritten.rows)
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
    model: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], axis: int, sizes: list[int], *, stays: bool
) -> Iterator[str]:
    """Leave the batch axis of a constant shape open; the node gives `sizes` for the exported rows.

    A shape may have one -1 only. Beside one, 0 keeps the batch axis where it `stays`.
    """
    if axis >= len(shape) or shape[axis] in (0, -1) or 0 in sizes:
        return
    is_open = -1 in shape
    kept = sizes if is_open and not stays else shape
    yield _with_shape(model, node, [*kept[:axis], 0 if is_open and stays else -1, *kept[axis + 1 :]], shape)


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
    joins = node.op_type == "Concat"
    if joins and attribute(node, "axis", 0) == 0:
        return None
    for index, name in enumerate(node.input):
        size = _repeated(net, name, 0, rows)
        # One row of a constant is added to every row of the batch as it is, and a vector holds no rows.
        if size is not None and (joins or (size[0] > 1 and len(size) > 1)):
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
    value = _constant(net, name)
    if value is None or value.ndim <= axis or value.shape[axis] not in (1, rows):
        return None
    return list(value.shape) if (value == value.take([0], axis)).all() else None


def _constant(net: Net, name: str) -> NDArray[Any] | None:
    """The value of a tensor that depends on no input; None for others."""
    needed, waiting = set(), [name]
    while waiting:
        tensor = waiting.pop()
        if tensor in needed or tensor in net.constants or not tensor:
            continue
        if tensor not in net.makers:
            return None
        needed.add(tensor)
        waiting += net.makers[tensor].input
    if not needed:
        return net.constant(name)
    needed |= {tensor for maker in needed for tensor in net.makers[maker].input}
    nodes = [node for node in net.model.graph.node if needed.intersection(node.output)]
    constants = [tensor for tensor in net.model.graph.initializer if tensor.name in needed]
    graph = helper.make_graph(nodes, "constant", [], [onnx.ValueInfoProto(name=name)], constants)
    made = helper.make_model(graph, opset_imports=net.model.opset_import, ir_version=net.model.ir_version)
    try:
        return np.asarray(run(guarded_session_of(made), {})[0])
    except Mistake:
        return None


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
