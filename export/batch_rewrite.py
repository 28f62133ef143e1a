"""A graph with a fixed number of rows, rewritten to take any: dynamic first axes, and constants that name no row count.

Every change is right for the row count that the file was exported with; whether it is for others, the proof tells.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from export.batch_culprit import Culprit
from export.onnx_graph import Net, attribute, dims, graph_inputs, label

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


def loosen(model: onnx.ModelProto) -> Rewritten:
    """Make the first axis of all inputs and outputs dynamic, and every constant shape that names the row count."""
    rows = fixed_rows(model) or 1
    made = onnx.ModelProto()
    made.CopyFrom(model)
    changes = [*_open_axes(made, rows)]
    shapes = _static_shapes(model)
    net = Net.of(model)
    for node in made.graph.node:
        change = {"Reshape": _reshape, "Expand": _expand}.get(node.op_type)
        if change is not None and (shape := net.numbers(node, "shape", 1)) is not None:
            changes += change(made, node, shapes.get(node.output[0], list(shape)), rows)
    return Rewritten(model=made, rows=rows, changes=tuple(changes))


def mend(rewritten: Rewritten, culprit: Culprit) -> Rewritten | None:
    """Spread a constant of one row that the culprit joins with the batch; None when there is nothing to mend."""
    made = onnx.ModelProto()
    made.CopyFrom(rewritten.model)
    net = Net.of(made)
    node = next(one for one in made.graph.node if one.output[0] == culprit.node.output[0])
    repairs: dict[str, Callable[[], str | None]] = {
        "Concat": lambda: _spread_joined(made, net, node, culprit),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda: _spread_states(made, net, node)),
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


def _static_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """The shapes of the tensors of the graph as it was exported, where all dimensions are known."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    _drop_large_weights(bare)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except Exception:
        return {}
    found = {}
    for value in [*inferred.graph.value_info, *inferred.graph.output]:
        shape = dims(value)
        if shape and all(isinstance(dim, int) for dim in shape):
            found[value.name] = [int(dim) for dim in shape]
    return found


def _drop_large_weights(model: onnx.ModelProto) -> None:
    """Shape inference copies the model several times, and needs only the values of shapes and axes."""
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > 10_000:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            model.graph.input.append(value)
    kept = [tensor for tensor in model.graph.initializer if len(tensor.raw_data) <= 10_000]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _reshape(made: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], rows: int) -> Iterator[str]:
    """Leave the one axis that holds the rows to be computed: the first of exactly their number, else the first."""
    at = next((axis for axis, size in enumerate(shape) if size == rows), 0)
    if not shape or shape[at] % rows or any(size == 0 for size in shape):
        return
    if -1 in shape and shape[at] != -1:
        return  # its size is not known, and a shape may leave one axis open only
    yield _with_shape(made, node, [*shape[:at], -1, *shape[at + 1 :]], shape)


def _expand(made: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], rows: int) -> Iterator[str]:
    """A first axis of 1 takes over that of the tensor, whatever it is."""
    if rows > 1 and shape and shape[0] == rows:
        yield _with_shape(made, node, [1, *shape[1:]], shape)


def _with_shape(made: onnx.ModelProto, node: onnx.NodeProto, shape: list[int], old: list[int]) -> str:
    name = f"{node.output[0]}/any_batch"
    made.graph.initializer.append(numpy_helper.from_array(np.array(shape, dtype=np.int64), name))
    told = label(node)
    node.input[1] = name
    return f"{told}: shape {old} -> {shape}"


def _spread_joined(made: onnx.ModelProto, net: Net, node: onnx.NodeProto, culprit: Culprit) -> str | None:
    if attribute(node, "axis", 0) == 0:
        return None
    for index, name in enumerate(node.input):
        if name not in culprit.layout and (size := _one_row(net, name, 0)) is not None:
            node.input[index] = _spread(made, node, name, size, axis=0)
            return f'{label(node)}: the constant "{name}" of shape {size} is repeated for every row'
    return None


def _spread_states(made: onnx.ModelProto, net: Net, node: onnx.NodeProto) -> str | None:
    """The initial states of a recurrent layer: inputs 5 and 6, shape (directions, batch, hidden)."""
    axis, changed = (0 if attribute(node, "layout", 0) else 1), []
    for index in (5, 6):
        name = node.input[index] if len(node.input) > index else ""
        if name and (size := _one_row(net, name, axis)) is not None:
            node.input[index] = _spread(made, node, name, size, axis=axis)
            changed.append(name)
    return f"{label(node)}: its initial state {' and '.join(changed)} is repeated for every row" if changed else None


def _one_row(net: Net, name: str, axis: int) -> list[int] | None:
    """The shape of a constant with one row on `axis`; None for anything else."""
    if name in net.constants:
        size = list(net.constants[name].dims)
        return size if len(size) > axis and size[axis] == 1 else None
    maker = net.makers.get(name)
    if maker is not None and maker.op_type in ("Expand", "ConstantOfShape", "Identity"):
        # A constant that an exporter spread over its rows; `loosen` set that count back to 1.
        shape = net.numbers(maker, "", 1 if maker.op_type == "Expand" else 0)
        return _one_row(net, maker.input[0], axis) if shape is None else _checked(list(shape), axis)
    return None


def _checked(size: list[int], axis: int) -> list[int] | None:
    return size if len(size) > axis and size[axis] == 1 else None


def _spread(made: onnx.ModelProto, node: onnx.NodeProto, name: str, size: list[int], *, axis: int) -> str:
    """Nodes before `node` that repeat `name` along `axis` as often as the batch has rows; the new tensor's name."""
    first, prefix = graph_inputs(made)[0].name, f"{node.output[0]}/{name}"
    one = f"{prefix}/ones"
    before, after = [1] * axis, [1] * (len(size) - axis - 1)
    nodes = [
        helper.make_node("Shape", [first], [f"{prefix}/shape"]),
        _first_of(f"{prefix}/shape", f"{prefix}/rows", prefix),
    ]
    made.graph.initializer.append(numpy_helper.from_array(np.array([0], dtype=np.int64), f"{prefix}/zero"))
    parts = [f"{prefix}/rows"]
    for side, values in (("before", before), ("after", after)):
        if values:
            made.graph.initializer.append(numpy_helper.from_array(np.array(values, dtype=np.int64), f"{one}/{side}"))
            parts = [f"{one}/{side}", *parts] if side == "before" else [*parts, f"{one}/{side}"]
    nodes.append(helper.make_node("Concat", parts, [f"{prefix}/wanted"], axis=0))
    nodes.append(helper.make_node("Expand", [name, f"{prefix}/wanted"], [f"{prefix}/spread"]))
    at = next(index for index, other in enumerate(made.graph.node) if other.output[0] == node.output[0])
    for offset, added in enumerate(nodes):
        made.graph.node.insert(at + offset, added)
    return f"{prefix}/spread"


def _first_of(shape: str, rows: str, prefix: str) -> onnx.NodeProto:
    return helper.make_node("Gather", [shape, f"{prefix}/zero"], [rows], axis=0)
