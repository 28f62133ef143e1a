"""What an estimate does not know: bounds that contain what onnxruntime measures, and words."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from perf.memory.__main__ import main
from perf.memory.estimate import session
from perf.memory.estimate.batch_memory import Model

MIB = 2**20
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Builder:
    """Adds nodes one by one; each call returns the name of the node's first output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; the names of further outputs end in _1, _2."""
        name = f"{kind.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}_{at}" for at in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant."""
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(self, source: str, inside: int, outside: int, side: int = 3, *, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with a bias and the padding that keeps the size at stride 1."""
        weight = self.constant(np.ones((outside, inside // group, side, side), np.float32))
        bias = self.constant(np.ones(outside, np.float32))
        return self.node("Conv", source, weight, bias, group=group, strides=[stride] * 2, pads=[side // 2] * 4)

    def numbers(self, *values: int) -> str:
        """Add a constant vector of integers."""
        return self.constant(np.array(values, np.int64))


def measured(path: Path, x: NDArray[np.float32]) -> tuple[int, int]:
    """The bytes that the arena of a session holds after one run, and their peak, by onnxruntime's profile."""
    with tempfile.TemporaryDirectory() as folder:
        options = session.settings("basic", threads=1)
        options.enable_profiling = True
        options.enable_mem_pattern = False
        options.profile_file_prefix = str(Path(folder) / "profile")
        running = session.opened(path, options)
        running.run(None, {"x": x})
        events = json.loads(Path(running.end_profiling()).read_text())
    last = [event["args"] for event in events if "mem_arena_held" in event.get("args", {})][-1]
    return int(last["mem_arena_held"]), int(last["mem_in_use_peak"])


def graph_file(folder: Path, net: Builder, output: str, dims: tuple[int, ...] = (64,)) -> Path:
    path = folder / "graph.onnx"
    graph = helper.make_graph(
        [*net.nodes, helper.make_node("Sigmoid", [output], ["y"], name="make_y")],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", *dims])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        net.weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def contains(path: Path, batch: int) -> None:
    """Peak and held bytes of a session are within the bounds."""
    model = Model.of(path)
    memory = model.at(batch, {})
    held, peak = measured(path, np.ones((batch, 64), np.float32))
    outside = model.weights.outside
    assert memory.most is not None
    assert memory.held_most is not None
    assert model.bounded
    assert memory.arena_held <= held <= memory.held_most - outside
    assert memory.activations_peak <= peak <= memory.most.activations_peak + memory.most.weights - outside


def test_the_constants_of_both_branches_are_in_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Builder()
    value = helper.make_tensor_value_info
    matrices = [
        numpy_helper.from_array(np.ones(shape, np.float32), f"w{at}")
        for at, shape in enumerate([(64, 4096), (4096, 64)])
    ]
    products = [helper.make_node("MatMul", ["x", "w0"], ["a"]), helper.make_node("MatMul", ["a", "w1"], ["o"])]
    condition = net.node("Greater", net.node("ReduceMax", "x", keepdims=0), net.constant(np.float32(0)))
    made = net.node(
        "If",
        condition,
        then_branch=helper.make_graph(products, "then", [], [value("o", FLOAT, None)], matrices),
        else_branch=helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [value("e", FLOAT, None)]),
    )
    path = graph_file(tmp_path, net, made)
    contains(path, 8)
    assert main([str(path), "--batch", "8", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (line,) = told["batches"]
    assert (told["exact"], told["bounded"], told["unchecked"]) == (False, {"If": 1}, {})
    assert line["weights"] >= 2 * MIB
    assert line["most"]["weights"] >= 4 * MIB
    assert line["most"]["held"] >= line["held"] + 2 * MIB
    assert told["session_held_most"] >= told["session_held"]


def _sliced(net: Builder, source: str) -> onnx.GraphProto:
    """A body that takes as many columns of `source` as the values of x say, and returns a number."""
    end = net.node("Cast", net.node("Reshape", net.node("ReduceMax", "x", keepdims=0), net.numbers(1)), to=INT64)
    nodes = [
        helper.make_node("Slice", [source, net.numbers(0), end, net.numbers(-1)], ["part"]),
        helper.make_node("Mul", ["part", "part"], ["square"]),
        helper.make_node("ReduceMax", ["square"], ["top"], keepdims=0),
    ]
    inputs = [] if source == "x" else [helper.make_tensor_value_info(source, FLOAT, None)]
    return helper.make_graph(nodes, "sliced", inputs, [helper.make_tensor_value_info("top", FLOAT, None)])


def unknown_branch(folder: Path) -> Path:
    """A model with a branch whose memory depends on values."""
    net = Builder()
    condition = net.node("Greater", net.node("ReduceMax", "x", keepdims=0), net.constant(np.float32(0)))
    other = helper.make_node("Constant", [], ["e"], value=numpy_helper.from_array(np.zeros((), np.float32)))
    made = net.node(
        "If",
        condition,
        then_branch=_sliced(net, "x"),
        else_branch=helper.make_graph([other], "else", [], [helper.make_tensor_value_info("e", FLOAT, None)]),
    )
    return graph_file(folder, net, made, (1_000_000,))


def test_a_body_whose_shapes_depend_on_values_has_no_upper_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unknown_branch(tmp_path)
    model = Model.of(path)
    memory = model.at(1, {})
    held, peak = measured(path, np.full((1, 1_000_000), 1_000_000, np.float32))
    assert peak >= 8_000_000
    assert memory.arena_held <= held
    assert memory.most is None
    assert model.most_after([1], {}) is None
    assert main([str(path), "--batch", "1", "--format", "json", "--level", "basic"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["exact"], told["bounded"], told["unchecked"]) == (False, {}, {"If": 1})
    assert (told["batches"][0]["most"], told["session_held_most"]) == (None, None)
