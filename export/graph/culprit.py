"""Finds the node that mixes the rows of a batch.

Runs the graph with every tensor as an output. The culprit is the first node whose inputs still hold one part per row
and whose output does not.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import onnx

from export.graph.axis_proof import onnxruntime_errors, run, take
from export.graph.changed import guarded_session_of
from export.graph.error_measure import LOOSER, Rounding, Scale
from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import Net, graph_inputs, label, with_all_outputs
from export.graph.reason import reason
from export.graph.rounding import changes

MOST_ROWS = 3
"""A tensor of every node is kept for each row and for the batch."""

FAILED = re.compile(r"Name:'([^']*)'")


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A node, what it does to the batch, and the batch axis of each tensor in which the rows could be seen."""

    node: onnx.NodeProto
    why: str
    layout: Mapping[str, int]

    def __str__(self) -> str:
        return f"{label(self.node)} {self.why}"


def find(model: onnx.ModelProto, rows: Rows, rounding: Rounding) -> Culprit | None:
    """The first node that mixes rows, or fails for more than one row; None if every tensor keeps its rows apart."""
    open_model = with_all_outputs(model)
    count = min(MOST_ROWS, len(next(iter(rows.values()))))
    session, failed = guarded_session_of(open_model, optimised=False), None
    try:
        batch = run(session, take(rows, 0, count))
    except onnxruntime_errors() as error:
        failed = _failed_node(model, open_model, str(error))
        if failed is None:
            return None
        # The nodes before it run, and one of them may cause the failure.
        _cut(open_model, failed)
        del session  # it holds the weights once more
        session = guarded_session_of(open_model, optimised=False)
        batch = run(session, take(rows, 0, count))
    alone = [run(session, take(rows, row, row + 1)) for row in range(count)]
    names = [output.name for output in session.get_outputs()]
    values = {name: ([outputs[index] for outputs in alone], batch[index]) for index, name in enumerate(names)}
    changed = changes(open_model, [take(rows, row, row + 1) for row in range(count)], optimised=False)
    drawn = {name for node in model.graph.node if _random(node) for name in node.output}
    noise = {name: each for name, each in zip(names, changed, strict=True) if name not in drawn}
    layout = {
        name: axis
        for name, (parts, whole) in values.items()
        if (axis := batch_axis(parts, whole, rounding, noise.get(name))) is not None
    }
    layout |= {value.name: 0 for value in graph_inputs(model)}
    net, data = Net.of(model), _data_tensors(model)
    for node in model.graph.node:
        for name in node.output:
            if failed is not None and node.output[0] == failed.output[0]:
                return Culprit(node=node, why=reason(net, node, layout), layout=layout)
            if name not in data or name not in values or name in layout:
                continue
            if not _unchanged(*values[name], rounding, noise.get(name)):
                return Culprit(node=node, why=reason(net, node, layout), layout=layout)
    return None


def tensor_shapes(model: onnx.ModelProto, rows: Rows) -> dict[str, list[int]]:
    """The shape of every tensor of the graph when it runs `rows`."""
    session = guarded_session_of(with_all_outputs(model), optimised=False)
    names = [output.name for output in session.get_outputs()]
    shapes = {name: list(array.shape) for name, array in zip(names, run(session, rows), strict=True)}
    return shapes | {name: list(array.shape) for name, array in rows.items()}


def failing(model: onnx.ModelProto, rows: Rows) -> Culprit | None:
    """The node that fails even for a single row; None if one row runs."""
    open_model = with_all_outputs(model)
    session = guarded_session_of(open_model, optimised=False)
    try:
        run(session, take(rows, 0, 1))
    except onnxruntime_errors() as error:
        node = _failed_node(model, open_model, str(error))
        return None if node is None else Culprit(node=node, why=reason(Net.of(model), node, {}), layout={})
    return None


def batch_axis(parts: list[Array], whole: Array, rounding: Rounding, noise: Array | None = None) -> int | None:
    """The axis along which `whole` holds the `parts` of its rows, in blocks or interleaved; None if there is none."""
    shape, count = parts[0].shape, len(parts)
    if any(part.shape != shape for part in parts) or whole.ndim != len(shape):
        return None
    scale, expected = Scale(parts, rounding, noise), np.stack(parts)
    for axis, size in enumerate(shape):
        if whole.shape != (*shape[:axis], size * count, *shape[axis + 1 :]):
            continue
        blocks = np.stack(np.split(whole, count, axis=axis))
        interleaved = np.stack([whole.take(range(row, size * count, count), axis=axis) for row in range(count)])
        if any((scale.errors(order, expected) <= LOOSER * rounding.tolerance).all() for order in (blocks, interleaved)):
            return axis
    return None


def _unchanged(parts: list[Array], whole: Array, rounding: Rounding, noise: Array | None) -> bool:
    """Whether the tensor is the same for every row and for the batch, so it does not depend on the rows."""
    if any(part.shape != whole.shape for part in parts):
        return False
    errors = Scale(parts, rounding, noise).errors(np.stack([whole] * len(parts)), np.stack(parts))
    return bool((errors <= LOOSER * rounding.tolerance).all())


def _data_tensors(model: onnx.ModelProto) -> Set[str]:
    """Tensors that depend on the inputs' values. Those that depend on shapes alone may change with the row count."""
    data = {value.name for value in graph_inputs(model)}
    for node in model.graph.node:
        if node.op_type not in ("Shape", "Size") and (data.intersection(node.input) or _random(node)):
            data.update(node.output)
    return data


def _random(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")


def _failed_node(model: onnx.ModelProto, open_model: onnx.ModelProto, error: str) -> onnx.NodeProto | None:
    match = FAILED.search(error)
    numbers = {node.name: number for number, node in enumerate(open_model.graph.node)}
    return model.graph.node[numbers[match[1]]] if match and match[1] in numbers else None


def _cut(open_model: onnx.ModelProto, failed: onnx.NodeProto) -> None:
    """Keep the nodes before the failed one, and their outputs."""
    graph = open_model.graph
    at = next(number for number, node in enumerate(graph.node) if node.output[0] == failed.output[0])
    del graph.node[at:]
    names = {name for node in graph.node for name in node.output}
    outputs = [output for output in graph.output if output.name in names]
    del graph.output[:]
    graph.output.extend(outputs)
    if not outputs:
        # The first node fails, so only its input can be looked at; a graph needs an output.
        first = next(iter(graph_inputs(open_model))).name
        graph.node.append(onnx.helper.make_node("Identity", [first], [f"{first}/seen"]))
        graph.output.append(onnx.ValueInfoProto(name=f"{first}/seen"))
