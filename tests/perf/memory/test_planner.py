"""The plan, the memory pattern and the shapes, on graphs small enough to do by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.pattern import Pattern
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


def _node(kind: str, *inputs: str, to: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [to], **attributes)  # type: ignore[arg-type]


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


def test_a_dynamic_dimension_must_be_given(tmp_path: Path) -> None:
    path = _graph(tmp_path, [_node("Exp", "x", to="y")], inputs={"x": ["batch", "length", 4]})
    model = Model.of(path)
    with pytest.raises(Mistake, match="--dims length=SIZE"):
        model.inputs(2, {})
    assert model.inputs(2, {"length": 7}) == {"x": (2, 7, 4)}


def test_a_shape_that_follows_from_values_is_reported(tmp_path: Path) -> None:
    nodes = [_node("NonZero", "x", to="a"), _node("Cast", "a", to="y", to_=1)]
    nodes[1].attribute[0].name = "to"
    model = Model.of(_graph(tmp_path, nodes))
    with pytest.raises(Failure, match=r"shapes of 2 tensors .* \(a of NonZero, y of Cast\)"):
        model.at(1, {})
