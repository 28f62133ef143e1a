"""Which node keeps a graph from answering a batch as its rows alone: found by running it, told by what it is.

Every tensor of the graph is made an output; the first node whose inputs still hold one part per row and whose output no
longer does is the one.
"""

import re
import tempfile
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from export.graph.batch_axis import difference, onnxruntime_errors, open_session, run, take
from export.graph.batch_reason import reason
from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import Net, graph_inputs, label, save

FAILED = re.compile(r"Name:'([^']*)'")


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The node and why; `layout` has the batch axis of each tensor before it, where it could be seen."""

    node: onnx.NodeProto
    why: str
    layout: Mapping[str, int]

    def __str__(self) -> str:
        return f"{label(self.node)} {self.why}"


def find(model: onnx.ModelProto, rows: Rows, *, tolerance: float) -> Culprit | None:
    """The first node that mixes rows or fails for more than one; None when every tensor keeps its rows."""
    open_model = _with_all_outputs(model)
    count = min(3, len(next(iter(rows.values()))))
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(open_model, path)
        session = open_session(path, optimised=False)
        alone = [run(session, take(rows, row, row + 1)) for row in range(count)]
        failed = None
        try:
            batch = run(session, take(rows, 0, count))
        except onnxruntime_errors() as error:
            failed = _failed_node(model, open_model, str(error))
            if failed is None:
                return None
            del session
            # What comes before it runs, and may be the cause of the failure.
            _cut(open_model, failed)
            save(open_model, path)
            session = open_session(path, optimised=False)
            alone = [run(session, take(rows, row, row + 1)) for row in range(count)]
            batch = run(session, take(rows, 0, count))
        names = [output.name for output in session.get_outputs()]
    values = {name: ([one[index] for one in alone], batch[index]) for index, name in enumerate(names)}
    layout = {
        name: found
        for name, (parts, whole) in values.items()
        if (found := batch_axis(parts, whole, tolerance)) is not None
    }
    layout |= {value.name: 0 for value in graph_inputs(model)}
    net, data = Net.of(model), _data(model)
    for node in model.graph.node:
        for name in node.output:
            if failed is not None and node.output[0] == failed.output[0]:
                return Culprit(node=node, why=reason(net, node, layout), layout=layout)
            if name in data and name in values and name not in layout and not _unchanged(*values[name], tolerance):
                return Culprit(node=node, why=reason(net, node, layout), layout=layout)
    return None


def tensor_shapes(model: onnx.ModelProto, rows: Rows) -> dict[str, list[int]]:
    """The shape of every tensor of the graph while it answers `rows`."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(_with_all_outputs(model), path)
        session = open_session(path, optimised=False)
    names = [output.name for output in session.get_outputs()]
    found = {name: list(array.shape) for name, array in zip(names, run(session, rows), strict=True)}
    return found | {name: list(array.shape) for name, array in rows.items()}


def failing(model: onnx.ModelProto, rows: Rows) -> Culprit | None:
    """The node that does not run even for a single row; None when one row runs."""
    open_model = _with_all_outputs(model)
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(open_model, path)
        session = open_session(path, optimised=False)
    try:
        run(session, take(rows, 0, 1))
    except onnxruntime_errors() as error:
        node = _failed_node(model, open_model, str(error))
        return None if node is None else Culprit(node=node, why=reason(Net.of(model), node, {}), layout={})
    return None


def batch_axis(parts: list[Array], whole: Array, tolerance: float) -> int | None:
    """The axis along which `whole` holds the `parts` of its rows, in blocks or interleaved; None when it does not."""
    shape, count = parts[0].shape, len(parts)
    if any(part.shape != shape for part in parts) or whole.ndim != len(shape):
        return None
    for axis, size in enumerate(shape):
        if whole.shape != (*shape[:axis], size * count, *shape[axis + 1 :]):
            continue
        blocks = np.concatenate(parts, axis=axis)
        interleaved = np.stack(parts, axis=axis + 1).reshape(whole.shape)
        if any(difference(whole, order) <= 10 * tolerance for order in (blocks, interleaved)):
            return axis
    return None


def _unchanged(parts: list[Array], whole: Array, tolerance: float) -> bool:
    """Whether the tensor is the same for every row and for the batch, so that no row can be seen in it."""
    return all(difference(part, whole) <= tolerance for part in parts)


def _data(model: onnx.ModelProto) -> Set[str]:
    """Tensors that hold what a request says; those made of shapes alone may change with the number of rows."""
    data = {value.name for value in graph_inputs(model)}
    for node in model.graph.node:
        if node.op_type not in ("Shape", "Size") and (data.intersection(node.input) or _random(node)):
            data.update(node.output)
    return data


def _random(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")


def _with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node has a name that onnxruntime's errors say, and every tensor is an output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    made = {output.name for output in copy.graph.output}
    for number, node in enumerate(copy.graph.node):
        node.name = f"node-{number}"
        for name in node.output:
            if name and name not in made:
                copy.graph.output.append(onnx.ValueInfoProto(name=name))
    return copy


def _failed_node(model: onnx.ModelProto, open_model: onnx.ModelProto, error: str) -> onnx.NodeProto | None:
    found = FAILED.search(error)
    numbers = {node.name: number for number, node in enumerate(open_model.graph.node)}
    return model.graph.node[numbers[found[1]]] if found and found[1] in numbers else None


def _cut(open_model: onnx.ModelProto, failed: onnx.NodeProto) -> None:
    """Keep the nodes before the failed one, and their outputs."""
    graph = open_model.graph
    at = next(number for number, node in enumerate(graph.node) if node.output[0] == failed.output[0])
    del graph.node[at:]
    kept = {name for node in graph.node for name in node.output}
    outputs = [output for output in graph.output if output.name in kept]
    del graph.output[:]
    graph.output.extend(outputs)
    if not outputs:
        # A failing first node: its input is all there is to look at, and a graph needs an output.
        first = next(iter(graph_inputs(open_model))).name
        graph.node.append(onnx.helper.make_node("Identity", [first], [f"{first}/seen"]))
        graph.output.append(onnx.ValueInfoProto(name=f"{first}/seen"))
