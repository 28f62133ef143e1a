"""Graphs whose nodes onnxruntime runs in an order that differs from session to session."""

from pathlib import Path

import onnx
import pytest

from perf.memory import limits
from perf.memory.estimate.batch_memory import Model
from perf.studies.memory_estimate.check import mismatches
from perf.studies.memory_estimate.measured import feeds_of, measure
from perf.studies.memory_estimate.zoo import Builder


def shuffled_units(units: int, width: int = 36) -> onnx.ModelProto:
    """Units of a ShuffleNet: two branches of convolutions, joined, and their channels shuffled."""
    net = Builder()
    current, inside, side = net.node("Relu", net.conv("x", 3, 24, stride=2)), 24, 32
    for _ in range(units):
        side //= 2
        left = net.conv(net.conv(current, inside, inside, stride=2, group=inside), inside, width, 1)
        right = net.conv(net.node("Relu", net.conv(current, inside, width, 1)), width, width, stride=2, group=width)
        both = net.node("Concat", net.node("Relu", left), net.node("Relu", net.conv(right, width, width, 1)), axis=1)
        parted = net.node("Reshape", both, net.numbers(0, 2, width, side, side))
        current = net.node("Transpose", parted, perm=[0, 2, 1, 3, 4])
        inside = 2 * width
        current = net.node("Reshape", current, net.numbers(0, inside, side, side))
    return net.model("units", {"x": ["batch", 3, 64, 64]}, {"y": net.node("GlobalAveragePool", current)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "units.onnx"
    onnx.save(shuffled_units(1), path)
    return path


def test_every_session_has_one_of_the_orders_to_the_byte(path: Path) -> None:
    model = Model.of(path, level="all")
    assert len(model.orders) > 1
    inputs = feeds_of("units", path)(8)
    estimated = [order.runs([{"x": (8, 3, 64, 64)}])[0].boundaries for order in model.orders]
    memory = model.at(8, {})
    assert memory.most is not None
    for _ in range(6):
        (measured,) = measure(path, [inputs], level="all")
        assert any(not list(mismatches(boundaries, measured)) for boundaries in estimated)
        peak = measured[-1].peak - sum(kept.bytes for kept in model.weights.arena)
        assert memory.activations_peak <= peak <= memory.most.activations_peak


def test_the_orders_are_named(path: Path) -> None:
    assert "an order that differs from session to session" in limits.note(Model.of(path, level="all"), 1, {})
    assert len(Model.of(path, level="basic").orders) == 1
