"""The estimate against onnxruntime itself: every boundary of every run, to the byte."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.repository import served_file
from perf.memory.allocators.bfc import SAME_AS_REQUESTED
from perf.memory.estimate import operators
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.check import check, mismatches
from perf.memory.estimate.feeds import feeds_of
from perf.memory.estimate.measured import measure
from perf.memory.estimate.timeline import Boundary
from perf.memory.estimate.zoo import ZOO


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    def save(name: str) -> Path:
        path = tmp_path / f"{name}.onnx"
        onnx.save(ZOO[name](), path)
        return path

    return save


@pytest.mark.parametrize("name", ["bert", "depthwise", "gru", "lstm", "reshaper", "transformer", "unet", "upscaler"])
@pytest.mark.parametrize("setting", ["basic", "served"])
def test_every_boundary_of_a_network_is_exact(name: str, setting: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    sessions = [(3,), (16,)] if setting == "basic" else [(2, 8, 2, 8, 5)]
    for found in check(path, setting, feeds_of(name, path), sessions=sessions):
        assert found.mismatches == ()
        assert found.boundaries > 4 * len(found.sizes)


def test_the_recogniser_is_exact() -> None:
    path = served_file("text_recognition")
    for found in check(path, "served", feeds_of("text_recognition", path), sessions=[(1, 1), (8, 8, 3)]):
        assert found.mismatches == ()


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("name", ["depthwise", "dense_net", "unet"])
def test_the_scratch_of_several_threads_is_exact(name: str, threads: int, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    model, feeds = Model.of(path, threads=threads), feeds_of(name, path)
    for batch in (1, 3):
        (measured,) = measure(path, [feeds(batch)], threads=threads)
        (estimated,) = model.runs([model.inputs(batch, {})])
        assert list(mismatches(estimated.boundaries, measured)) == []


# channels, height, width, filters, kernel, groups, pads, strides, dilations
CONVOLUTIONS = [
    (8, 32, 100, 16, 3, 1, 1, 1, 1),
    (16, 32, 100, 16, 3, 16, 1, 1, 1),
    (16, 4, 4, 64, 3, 1, 1, 1, 1),
    (16, 32, 32, 32, 7, 16, 3, 2, 1),
    (8, 20, 20, 8, 1, 1, 0, 1, 1),
    (8, 20, 20, 8, 1, 1, 0, 2, 1),
    (1, 20, 9, 3, 9, 1, 0, 1, 1),
    (2, 30, 30, 4, 3, 2, 2, 1, 2),
    (64, 12, 12, 32, 3, 1, 1, 1, 1),
]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_working_buffer_of_a_convolution_is_exact(case: tuple[int, ...], threads: int, tmp_path: Path) -> None:
    channels, height, width, filters, kernel, groups, pad, stride, gap = case
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], group=groups, pads=[pad] * 4, strides=[stride] * 2, dilations=[gap] * 2
    )
    weight = numpy_helper.from_array(np.zeros((filters, channels // groups, kernel, kernel), np.float32), "w")
    path = _one_node(node, [channels, height, width], tmp_path, [weight])
    model = Model.of(path, threads=threads)
    for batch in (1, 2, 5):
        (measured,) = measure(path, [{"x": np.zeros((batch, channels, height, width), np.float32)}], threads=threads)
        (estimated,) = model.runs([{"x": (batch, channels, height, width)}])
        assert list(mismatches(estimated.boundaries, measured)) == []


def test_an_output_that_no_node_takes_stays_to_the_end(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        *(helper.make_node("Exp", [source], [made]) for source, made in (("a", "c"), ("c", "d"), ("d", "e"), ("e", "y"))),
    ]
    path = _saved(nodes, [64], tmp_path)
    (measured,) = measure(path, [{"x": np.zeros((4, 64), np.float32)}])
    (estimated,) = Model.of(path).runs([{"x": (4, 64)}])
    assert list(mismatches(estimated.boundaries, measured)) == []


@pytest.mark.parametrize("name", ["dense_net", "transformer"])
def test_an_arena_that_grows_by_what_is_asked_is_exact(name: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    # The arena with this strategy is one for the whole process, and keeps what earlier sessions left in it.
    with multiprocessing.get_context("spawn").Pool(1) as process:
        measured = process.apply(_same_as_requested, (path, 16))
    model = Model.of(path, rules=SAME_AS_REQUESTED)
    (estimated,) = model.runs([model.inputs(16, {})])
    assert list(mismatches(estimated.boundaries, measured)) == []


def _same_as_requested(path: Path, batch: int) -> list[Boundary]:
    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1}))
    (run,) = measure(path, [feeds_of(path.stem, path)(batch)], shared_arena=True)
    return run


OPERATORS = ["Clip", "Flatten", "LSTM", "LogSoftmax", "Max", "RNN", "Relu", "Resize", "ScatterElements", "Unsqueeze", "Where"]


@pytest.fixture(scope="module")
def node_tests() -> dict[str, list[operators.Case]]:
    found: dict[str, list[operators.Case]] = {}
    for case in operators.cases(constant=True):
        found.setdefault(case.operator, []).append(case)
    return found


@pytest.mark.parametrize("operator", OPERATORS)
def test_kernels_are_exact_on_the_node_tests_of_onnx(
    operator: str, node_tests: dict[str, list[operators.Case]]
) -> None:
    outcomes = [operators.check(case) for case in node_tests[operator][:3]]
    assert {one.verdict for one in outcomes} == {"exact"}, outcomes


def test_what_a_kernel_is_not_known_to_take_is_seen(node_tests: dict[str, list[operators.Case]]) -> None:
    outcome = operators.check(node_tests["DeformConv"][0])
    assert outcome.verdict == "mismatch"
    assert {one.field for one in outcome.mismatches} == {"peak"}


def _one_node(node: onnx.NodeProto, dims: list[int], folder: Path, weights: list[onnx.TensorProto]) -> Path:
    return _saved([node], dims, folder, weights)


def _saved(
    nodes: list[onnx.NodeProto], dims: list[int], folder: Path, weights: list[onnx.TensorProto] | None = None
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *dims])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights or [],
    )
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
