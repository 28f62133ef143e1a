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
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.kernels import ALIASES, INPLACE
from perf.memory.estimate.timeline import Boundary
from perf.studies.memory_estimate.check import check, mismatches
from perf.studies.memory_estimate.measured import feeds_of, measure
from perf.studies.memory_estimate.zoo import ZOO


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
    for checked in check(path, setting, feeds_of(name, path), sessions=sessions):
        assert checked.mismatches == ()
        assert checked.boundaries > 4 * len(checked.sizes)


def test_the_recogniser_is_exact() -> None:
    path = served_file("text_recognition")
    for checked in check(path, "served", feeds_of("text_recognition", path), sessions=[(1, 1), (8, 8, 3)]):
        assert checked.mismatches == ()


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
    path = _saved([node], [channels, height, width], tmp_path, [weight])
    model = Model.of(path, threads=threads)
    for batch in (1, 2, 5):
        (measured,) = measure(path, [{"x": np.zeros((batch, channels, height, width), np.float32)}], threads=threads)
        (estimated,) = model.runs([{"x": (batch, channels, height, width)}])
        assert list(mismatches(estimated.boundaries, measured)) == []


def test_an_output_that_no_node_takes_stays_to_the_end(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        *(
            helper.make_node("Exp", [source], [made])
            for source, made in (("a", "c"), ("c", "d"), ("d", "e"), ("e", "y"))
        ),
    ]
    path = _saved(nodes, [64], tmp_path)
    (measured,) = measure(path, [{"x": np.zeros((4, 64), np.float32)}])
    (estimated,) = Model.of(path).runs([{"x": (4, 64)}])
    assert list(mismatches(estimated.boundaries, measured)) == []


def test_an_arena_that_grows_by_the_request_is_exact(saved: Callable[[str], Path]) -> None:
    path = saved("transformer")
    # The arena with this strategy is shared by the whole process and keeps the regions of earlier sessions.
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


FLOATS, NUMBERS = np.ones((4, 6), np.float32), np.zeros((4, 6), np.int64)
# What the kernels of these need besides one float input of (batch, 6), or (4, 6) where an index must fit.
KERNELS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "BitCast": ({"to": TensorProto.INT32}, {}),
    "Cast": ({"to": TensorProto.INT32}, {}),
    "Clip": ({}, {"low": np.float32(0), "high": np.float32(1)}),
    "Reshape": ({}, {"shape": np.array([-1, 3])}),
    "Scatter": ({}, {"at": NUMBERS[:, :1], "new": FLOATS[:, :1]}),
    "ScatterElements": ({}, {"at": NUMBERS[:, :1], "new": FLOATS[:, :1]}),
    "Squeeze": ({}, {"axes": np.array([2])}),
    "TensorScatter": ({"axis": 1}, {"new": FLOATS[:, :2], "at": NUMBERS[:, 0]}),
    "Trilu": ({}, {}),
    "Unsqueeze": ({}, {"axes": np.array([0])}),
}
OPSETS = {"BitCast": 26, "Scatter": 10, "TensorScatter": 24}
DIMS = {"Squeeze": [6, 1]}


@pytest.mark.parametrize("needed_later", [False, True])
@pytest.mark.parametrize("operator", sorted(ALIASES | INPLACE))
def test_aliases_and_in_place_kernels_are_as_registered(operator: str, needed_later: bool, tmp_path: Path) -> None:
    attributes, constants = KERNELS.get(operator, ({}, {}))
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node(operator, ["a", *constants], ["b"], **attributes),  # type: ignore[arg-type]
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.DOUBLE),
    ]
    if needed_later:  # `a` is taken again, by a node that must wait for what the kernel makes
        nodes += [helper.make_node("Shape", ["c"], ["s"]), helper.make_node("Reshape", ["a", "s"], ["r"])]
    nodes.append(helper.make_node("Exp", ["r" if needed_later else "c"], ["d"]))
    nodes.append(helper.make_node("Cast", ["d"], ["y"], to=TensorProto.FLOAT16))
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    opset = OPSETS.get(operator, 17)
    path = _saved(nodes, DIMS.get(operator, [6]), tmp_path, weights, opset=opset, kind=TensorProto.FLOAT16)
    shape = (4, *DIMS.get(operator, [6]))
    (measured,) = measure(path, [{"x": np.ones(shape, np.float32)}], level="disabled")
    (estimated,) = Model.of(path, level="disabled").runs([{"x": shape}])
    assert list(mismatches(estimated.boundaries, measured)) == []


def _saved(
    nodes: list[onnx.NodeProto],
    dims: list[int],
    folder: Path,
    weights: list[onnx.TensorProto] | None = None,
    *,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> Path:
    path = folder / "graph.onnx"
    onnx.save(_model(nodes, dims, weights, opset=opset, kind=kind), path)
    return path


def _model(
    nodes: list[onnx.NodeProto],
    dims: list[int],
    weights: list[onnx.TensorProto] | None = None,
    *,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *dims])],
        [helper.make_tensor_value_info("y", kind, None)],
        weights or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
