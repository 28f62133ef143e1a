"""The floor of a graph: its weights and its largest set of live tensors."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from perf.memory.floor import floor

ITEMS = 1000
ROW_BYTES = 4 * ITEMS


def saved(folder: Path, nodes: list[onnx.NodeProto], weights: tuple[onnx.TensorProto, ...] = ()) -> Path:
    """A graph from `x` to `y`, both [batch, 1000], whose weights are declared, as some exporters do."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", ITEMS]) for name in "xy")
    declared = [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in weights]
    graph = helper.make_graph(nodes, "graph", [x], [y], list(weights), value_info=declared)
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@st.composite
def sums(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """Sums of earlier tensors, of which the last is `y`."""
    names = ["x"]
    made = []
    for number in range(draw(st.integers(1, 8))):
        made.append((f"t{number}", draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))))
        names.append(f"t{number}")
    return [*made, ("y", [names[-1]])]


@settings(max_examples=20)
@given(sums(), st.integers(1, 5))
def test_the_live_tensors_of_any_graph(graph: list[tuple[str, list[str]]], rows: int) -> None:
    """A tensor is live from its node to its last reader; `x` and `y` to the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder), [helper.make_node("Sum", read, [name]) for name, read in graph])
        found = floor(path, {"x": (rows, ITEMS)})
    readers = {name: [at for at, (_, read) in enumerate(graph) if name in read] for name, _ in graph}
    most = max(
        sum(made <= at <= max(readers[name], default=made) for made, (name, _) in enumerate(graph))
        for at in range(len(graph))
    )
    assert (found.weights, found.live, found.unknown) == (0, (1 + most) * rows * ROW_BYTES, 0)


def test_what_is_done_in_place_takes_nothing_and_weights_count_once(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((ITEMS, ITEMS), dtype=np.float32), "w")
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"]),  # computed when the graph is loaded
        helper.make_node("MatMul", ["x", "turned"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "turned"], ["y"]),
    ]
    found = floor(saved(tmp_path, nodes, (weights,)), {"x": (2, ITEMS)})
    # x, y, and one buffer for a, b and c.
    assert (found.weights, found.live) == (4 * ITEMS * ITEMS, 3 * 2 * ROW_BYTES)
    assert [name for name, _ in found.largest] == ["x", "a", "y"]


def test_a_shape_that_depends_on_values_counts_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Cast", ["places"], ["y"], to=TensorProto.FLOAT),
    ]
    assert floor(saved(tmp_path, nodes), {"x": (1, ITEMS)}).unknown == 2
