"""Graphs whose nodes onnxruntime runs in an order that differs from session to session."""

from pathlib import Path

from perf.memory import limits
from perf.memory.estimate.batch_memory import Model
from tests.perf.memory.test_limits import Builder, graph_file


def shuffled_units(folder: Path, units: int, width: int = 36) -> Path:
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
    return graph_file(folder, net, net.node("GlobalAveragePool", current), (3, 64, 64))


def saved(folder: Path, units: int) -> Model:
    return Model.of(shuffled_units(folder, units), level="all")


def test_the_bounds_are_those_of_all_orders(tmp_path: Path) -> None:
    """Each unit runs one of its two branches first."""
    model = saved(tmp_path, 3)
    assert (len(model.orders), model.all_orders) == (2**3, True)
    most = model.at(8, {}).most
    assert most is not None
    peaks = [order.runs([{"x": (8, 3, 64, 64)}])[0].boundaries[-1].peak for order in model.orders]
    assert most.activations_peak == max(peaks) - sum(kept.bytes for kept in model.weights.arena)
    assert "those of 8 orders, which are all" in limits.note(model, 1, {})


def test_some_of_many_orders_give_no_upper_bound(tmp_path: Path) -> None:
    model = saved(tmp_path, 5)
    assert len(model.orders) > 1
    assert (model.all_orders, model.is_exact) == (False, False)
    assert (model.at(1, {}).most, model.most_after([1], {})) == (None, None)
    assert f"those of {len(model.orders)} orders, and others can take more or less" in limits.note(model, 1, {})
