"""Brings rows first where a graph has them on a later axis, as a recurrent state [layers, rows, width] does.

The batch is the axis with the same name, or the same fixed size, in every input. The proof shows whether that is right.
"""

import onnx
from onnx import helper

from export.graph.onnx_graph import attribute, dims, graph_inputs, rename_inputs, shape_text

RECURRENT = ("LSTM", "GRU", "RNN")


def rows_first(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A copy whose inputs and outputs begin with their rows, and a line for each that was changed.

    The model itself, and no lines, if all begin with their rows or no axis of rows is known.
    """
    axes = _axes(model)
    if not any(axes.values()):
        return model, ()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph, lines = copy.graph, []
    for kind, values in (("input", graph_inputs(copy)), ("output", list(graph.output))):
        for value in values:
            if axis := axes.get(value.name):
                _transpose(graph, value, axis, before=kind == "input")
                shape = shape_text(("rows", *dims(value)[1:]))
                lines.append(f'{kind} "{value.name}" has its rows on axis {axis} in the file: it is served as {shape}')
    del graph.value_info[:]
    return copy, tuple(lines)


def _axes(model: onnx.ModelProto) -> dict[str, int]:
    """The axis of the rows of each input and output; none if there is no axis that all inputs but scalars share."""
    inputs = [value for value in graph_inputs(model) if dims(value)]
    for batch in _candidates(model):
        axes = {value.name: _axis(model, value, batch) for value in inputs}
        known = {name: axis for name, axis in axes.items() if axis is not None}
        if len(known) == len(inputs):
            return known | {value.name: _axis(model, value, batch) or 0 for value in model.graph.output}
    return {}


def _candidates(model: onnx.ModelProto) -> list[int | str]:
    """What the batch may be in the shapes of the inputs, the likeliest first: a name if there is an open first axis."""
    shapes = [dims(value) for value in graph_inputs(model) if dims(value)]
    firsts = [shape[0] for shape in shapes]
    if all(isinstance(first, int) for first in firsts):
        return sorted(dict.fromkeys(firsts), key=firsts.count, reverse=True)
    named = [dim for shape in shapes for dim in shape if isinstance(dim, str) and "batch" in dim.lower()]
    return [*dict.fromkeys([*named, *(first for first in firsts if first and isinstance(first, str))])]


def _axis(model: onnx.ModelProto, value: onnx.ValueInfoProto, batch: int | str) -> int | None:
    """The axis of a tensor that is the batch; None if none is, or several may be."""
    shape = dims(value)
    fitting = [axis for axis, dim in enumerate(shape) if dim == batch]
    if len(shape) == 3 and fitting[:2] == [0, 1] and _is_state(model, value.name):
        return 1
    return 0 if fitting[:1] == [0] else fitting[0] if len(fitting) == 1 else None


def _is_state(model: onnx.ModelProto, name: str) -> bool:
    """Whether the tensor is a state of a recurrent layer, [directions, rows, width]."""
    layers = [node for node in model.graph.node if node.op_type in RECURRENT and not attribute(node, "layout", 0)]
    return any(name in node.input[5:] or name in node.output[1:] for node in layers)


def _transpose(graph: onnx.GraphProto, value: onnx.ValueInfoProto, axis: int, *, before: bool) -> None:
    """Give an input or output its rows first, and the rest of the graph the tensor as it was."""
    name, inner = value.name, f"{value.name}/as_exported"
    for node in graph.node:
        rename_inputs(node, {name: inner})
        node.output[:] = [inner if tensor == name else tensor for tensor in node.output]
    rank = len(value.type.tensor_type.shape.dim)
    order = [axis, *(index for index in range(rank) if index != axis)]
    if before:
        back = [order.index(index) for index in range(rank)]
        graph.node.insert(0, helper.make_node("Transpose", [name], [inner], perm=back))
    else:
        graph.node.append(helper.make_node("Transpose", [inner], [name], perm=order))
    shape = value.type.tensor_type.shape
    shape.CopyFrom(onnx.TensorShapeProto(dim=[shape.dim[index] for index in order]))
