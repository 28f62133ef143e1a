"""The estimate against onnxruntime itself: every boundary of every run, to the byte."""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from perf.memory.estimate import session
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.kernels import ALIASES, INPLACE


def check(path: Path, shape: tuple[int, ...], *, level: str = "basic", threads: int = 1) -> None:
    """Compare the estimate of one run on ones with onnxruntime's profile, after every node."""
    with tempfile.TemporaryDirectory() as folder:
        options = session.settings(level, threads=threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        running = session.opened(path, options)
        running.run(None, {"x": np.ones(shape, np.float32)})
        events = json.loads(Path(running.end_profiling()).read_text())
    nodes = [event["args"] for event in events if event["name"].endswith("_kernel_time")]
    (estimated,) = Model.of(path, level=level, threads=threads).runs([{"x": shape}])
    fields = ("mem_bytes_in_use", "mem_bytes_requested_in_use", "mem_in_use_peak", "mem_arena_held")
    assert [(each.operator, each.in_use, each.requested, each.peak, each.held) for each in estimated.boundaries] == [
        (node["op_name"], *(int(node[field]) for field in fields)) for node in nodes if fields[0] in node
    ]


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
    for batch in (1, 2, 5):
        check(path, (batch, channels, height, width), threads=threads)


def test_an_output_that_no_node_takes_stays_to_the_end(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        *(
            helper.make_node("Exp", [source], [target])
            for source, target in (("a", "c"), ("c", "d"), ("d", "e"), ("e", "y"))
        ),
    ]
    path = _saved(nodes, [64], tmp_path)
    check(path, (4, 64))


FLOATS, INDICES = np.ones((4, 6), np.float32), np.zeros((4, 6), np.int64)
# What the kernels of these need besides one float input of (batch, 6), or (4, 6) where an index must fit.
KERNELS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "BitCast": ({"to": TensorProto.INT32}, {}),
    "Cast": ({"to": TensorProto.INT32}, {}),
    "Clip": ({}, {"low": np.float32(0), "high": np.float32(1)}),
    "Reshape": ({}, {"shape": np.array([-1, 3])}),
    "Scatter": ({}, {"at": INDICES[:, :1], "new": FLOATS[:, :1]}),
    "ScatterElements": ({}, {"at": INDICES[:, :1], "new": FLOATS[:, :1]}),
    "Squeeze": ({}, {"axes": np.array([2])}),
    "TensorScatter": ({"axis": 1}, {"new": FLOATS[:, :2], "at": INDICES[:, 0]}),
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
    check(path, (4, *DIMS.get(operator, [6])), level="disabled")


def _saved(
    nodes: list[onnx.NodeProto],
    dims: list[int],
    folder: Path,
    weights: list[onnx.TensorProto] | None = None,
    *,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *dims])],
        [helper.make_tensor_value_info("y", kind, None)],
        weights or [],
    )
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path
