"""The plan, the memory pattern and the shapes, on graphs small enough to do by hand."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from perf.memory.command import batches
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.graph import Graph
from perf.memory.estimate.pattern import Pattern, key
from perf.memory.estimate.planner import NEW, OUTPUT, REUSE, Plan, plan
from perf.memory.estimate.weights import Kept, weights
from triton_batching.terminal import Failure, Mistake

KIB = 1024


def _graph(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    weights: Mapping[str, object] | None = None,
) -> Path:
    shapes = inputs or {"x": ["batch", 256]}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def _planned(folder: Path, nodes: Sequence[onnx.NodeProto], **more: Mapping[str, object]) -> tuple[Graph, Plan]:
    graph = Graph.of(_graph(folder, nodes, **more), "disabled")  # type: ignore[arg-type]
    return graph, plan(graph)


def _node(kind: str, *inputs: str, to: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [to], **attributes)  # type: ignore[arg-type]


def test_a_kernel_writes_over_an_input_that_no_one_else_needs(tmp_path: Path) -> None:
    _, planned = _planned(tmp_path, [_node("Exp", "x", to="a"), _node("Relu", "a", to="b"), _node("Exp", "b", to="y")])
    assert (planned.kinds["a"], planned.kinds["b"], planned.kinds["y"]) == (NEW, REUSE, OUTPUT)
    assert planned.buffers["b"] == "a"
    assert planned.released == ((), (), ("a",))


def test_an_input_that_is_needed_later_is_not_written_over(tmp_path: Path) -> None:
    nodes = [_node("Exp", "x", to="a"), _node("Relu", "a", to="b"), _node("Add", "a", "b", to="y")]
    _, planned = _planned(tmp_path, nodes)
    assert (planned.kinds["b"], planned.buffers["b"]) == (NEW, "b")


def test_an_input_of_the_model_is_never_written_over(tmp_path: Path) -> None:
    _, planned = _planned(tmp_path, [_node("Relu", "x", to="a"), _node("Exp", "a", to="y")])
    assert planned.kinds["a"] == NEW


def test_an_alias_keeps_its_source_alive(tmp_path: Path) -> None:
    nodes = [
        _node("Exp", "x", to="a"),
        _node("Flatten", "a", to="b"),
        _node("Neg", "b", to="c"),
        _node("Add", "b", "c", to="y"),
    ]
    _, planned = _planned(tmp_path, nodes)
    assert planned.buffers["b"] == "a"
    assert planned.released == ((), (), (), ("a", "c"))


def test_a_freed_buffer_of_the_same_shape_is_taken_again_the_latest_first(tmp_path: Path) -> None:
    names = ["x", "a", "b", "c", "d", "y"]
    nodes = [_node("Exp", source, to=target) for source, target in itertools.pairwise(names)]
    _, planned = _planned(tmp_path, nodes)
    # Two buffers in turns: `c` finds `a` free, `d` finds `b`.
    assert [planned.buffers[name] for name in "abcd"] == ["a", "b", "a", "b"]


def test_a_shape_that_is_known_only_at_run_time_is_equal_to_none(tmp_path: Path) -> None:
    names = ["r", "b", "c", "d"]
    nodes = [
        _node("Exp", "x", to="a"),
        _node("Shape", "a", to="s"),
        _node("Reshape", "a", "s", to="r"),
        *(_node("Exp", source, to=target) for source, target in itertools.pairwise(names)),
        _node("Exp", "d", to="y"),
    ]
    _, planned = _planned(tmp_path, nodes)
    assert [planned.buffers[name] for name in "bcd"] == ["b", "c", "d"]


def test_nodes_run_depth_first_from_the_last_output(tmp_path: Path) -> None:
    nodes = [
        _node("Exp", "x", to="early"),
        _node("Neg", "early", to="left"),
        _node("Abs", "x", to="late"),
        _node("Add", "left", "late", to="y"),
    ]
    graph, _ = _planned(tmp_path, nodes)
    assert [node.op_type for node in graph.nodes] == ["Abs", "Exp", "Neg", "Add"]


def test_small_constants_are_in_the_arena_and_packed_ones_replace_their_source(tmp_path: Path) -> None:
    matrix, bias, scale = np.ones((256, 20), np.float32), np.ones(20, np.float32), np.ones((64, 20), np.float32)
    nodes = [
        _node("MatMul", "x", "matrix", to="a"),
        _node("Add", "a", "bias", to="b"),
        _node("Add", "b", "scale", to="y"),
    ]
    graph, _ = _planned(tmp_path, nodes, weights={"matrix": matrix, "bias": bias, "scale": scale})
    kept = weights(graph)
    # 20 columns are packed as 32.
    assert kept.arena == (Kept(bytes=20 * 4), Kept(bytes=32 * 256 * 4))
    assert kept.outside == 64 * 20 * 4
    assert kept.bytes == 20 * 4 + 32 * 256 * 4 + 64 * 20 * 4


def test_a_pattern_fills_the_gap_that_fits_best() -> None:
    pattern = Pattern()
    for name, size in (("a", 4 * KIB), ("b", KIB), ("c", 2 * KIB), ("d", KIB)):
        pattern.allocate(name, size)
    pattern.free("a")
    pattern.free("c")
    assert pattern.peak == 8 * KIB
    pattern.allocate("e", KIB + 1)  # into the gap of c, 2 KiB, not of a, 4 KiB
    pattern.allocate("f", 3 * KIB)
    assert pattern.peak == 8 * KIB
    pattern.allocate("g", 2 * KIB)
    assert pattern.peak == 10 * KIB
    assert pattern.holds("e", KIB + 200)  # the same multiple of 256
    assert not pattern.holds("e", KIB)
    assert not pattern.holds("h", KIB)


def test_two_inputs_of_one_shape_have_the_pattern_of_any_batch() -> None:
    assert key([(1, 16), (1, 16)]) == key([(32, 16), (32, 16)])
    assert key([(1, 16)]) != key([(32, 16)])


@pytest.mark.parametrize(
    ("text", "sizes"), [("1..32", [1, 2, 4, 8, 16, 32]), ("3..12", [3, 4, 8, 12]), ("7", [7]), ("1,24,3", [1, 3, 24])]
)
def test_batch_sizes_are_read(text: str, sizes: list[int]) -> None:
    assert list(batches(text)) == sizes


@pytest.mark.parametrize("text", ["", "0..4", "a", "4..", "-1", "5..2"])
def test_a_text_that_is_no_batch_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what int() says is said as well
        batches(text)


def test_a_chain_needs_two_tensors_at_a_time(tmp_path: Path) -> None:
    names = ["x", "a", "b", "c", "y"]
    nodes = [_node("Exp", source, to=target) for source, target in itertools.pairwise(names)]
    memory = Model.of(_graph(tmp_path, nodes)).at(8, {})
    assert (memory.lower_bound, memory.packed) == (2 * 8 * KIB, 2 * 8 * KIB)
    assert memory.activations_peak == 2 * 8 * KIB
    assert memory.weights == 0
    assert memory.arena_held == 1024 * KIB
    assert {tenant.bytes for tenant in memory.live} == {8 * KIB}


def test_the_names_at_the_peak_are_of_tensors_that_live_there(tmp_path: Path) -> None:
    names = ["x", "a", "b", "c", "d"]
    nodes = [_node("Exp", source, to=target) for source, target in itertools.pairwise(names)]
    memory = Model.of(_graph(tmp_path, [*nodes, _node("Concat", "d", "d", to="y", axis=1)])).at(8, {})
    # `d` lives in the buffer that `b` had first.
    assert [(tenant.tensor, tenant.bytes) for tenant in memory.live] == [("y", 16 * KIB), ("d", 8 * KIB)]
    assert memory.peak_node == "Concat"


def test_a_dynamic_dimension_must_be_given(tmp_path: Path) -> None:
    path = _graph(tmp_path, [_node("Exp", "x", to="y")], inputs={"x": ["batch", "length", 4]})
    model = Model.of(path)
    with pytest.raises(Mistake, match="--dims length=SIZE"):
        model.inputs(2, {})
    assert model.inputs(2, {"length": 7}) == {"x": (2, 7, 4)}


def test_inputs_that_begin_differently_leave_the_batch_open(tmp_path: Path) -> None:
    nodes = [_node("Concat", "x", "z", to="y", axis=0)]
    model = Model.of(_graph(tmp_path, nodes, inputs={"x": ["rows", 4], "z": ["others", 4]}))
    with pytest.raises(Mistake, match='"rows" of x, "others" of z'):
        model.inputs(2, {})
    assert model.inputs(2, {"others": 5}) == {"x": (2, 4), "z": (5, 4)}


def test_a_shape_that_follows_from_values_is_reported(tmp_path: Path) -> None:
    nodes = [_node("NonZero", "x", to="a"), _node("Cast", "a", to="y", to_=1)]
    nodes[1].attribute[0].name = "to"
    model = Model.of(_graph(tmp_path, nodes))
    with pytest.raises(Failure, match=r"shapes of 2 tensors .* \(a of NonZero, y of Cast\)"):
        model.at(1, {})


def test_a_constant_target_keeps_the_shapes_that_a_computed_one_loses(tmp_path: Path) -> None:
    names = ["r", "b", "c", "d", "y"]
    rest = [_node("Exp", source, to=target) for source, target in itertools.pairwise(names)]
    reshape = _node("Reshape", "a", "target", to="r")
    weights = {"target": np.array([0, -1])}
    _, planned = _planned(
        tmp_path,
        [_node("Exp", "x", to="a"), reshape, *rest],
        inputs={"x": ["batch", 4, 8]},
        weights=weights,
    )
    # `a` is free, but of another shape; `d` finds `b`.
    assert [planned.buffers[name] for name in "bcd"] == ["b", "c", "b"]
