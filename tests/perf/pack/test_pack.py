"""Packing: the paper's example, exact answers, the validator, and changes of a placement."""

import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perf.pack import exact, solver
from perf.pack.algorithms import ALGORITHMS, pack
from perf.pack.duty import Portion, Turns
from perf.pack.placement import Placement
from perf.pack.problem import Items, Plain
from perf.pack.replan import replan
from perf.pack.replay import replay
from perf.pack.validator import violations
from perf.pack.workload import Curve, Devices, Model, Pair, Workload
from triton_batching.terminal import Mistake

NOTHING = Curve(sizes=(1, 16), values=(0.0, 0.0))


def model(name: str, rate: float, target: float, times: tuple[float, ...], memory: Curve = NOTHING) -> Model:
    latency = Curve(sizes=(4, 8, 16), values=times)
    return Model(name=name, rate_per_s=rate, target_ms=target, latency=latency, memory=memory)


A = model("A", 64, 200, (50.0, 75.0, 100.0))
B = model("B", 32, 250, (50.0, 90.0, 125.0))
C = model("C", 32, 250, (60.0, 95.0, 125.0))
PAPER = Workload(devices=Devices(count=2, memory_bytes=1.0), models=(A, B, C), arrivals="uniform")


def random_workload(seed: int, count: int) -> Workload:
    """Models whose time is a line in the batch, each asking for 10 to 90 % of what fills a device."""
    chance = random.Random(seed)
    models = []
    for number in range(count):
        fixed, row = chance.uniform(2, 30), chance.uniform(0.2, 4)
        target = chance.uniform(5, 20) * (fixed + row)
        batch = max(rows for rows in range(1, 65) if 2 * (fixed + row * rows) <= target)
        rate = chance.uniform(0.1, 0.9) * batch / (fixed + row * batch) * 1e3 * (0.5 if seed % 2 else 1)
        memory = Curve.line(chance.uniform(0.01, 0.25), chance.uniform(0.0003, 0.003), 64)
        latency = Curve.line(fixed, row, 64)
        models.append(Model(name=f"model_{number}", rate_per_s=rate, target_ms=target, latency=latency, memory=memory))
    return Workload(devices=Devices(count=count, memory_bytes=1.0), models=tuple(models))


def random_sizes(seed: int, count: int) -> Plain:
    """Sizes of 20 to 100 in bins of 150."""
    chance = random.Random(seed)
    return Plain(sizes=[chance.randint(20, 100) for _ in range(count)], capacity=150)


def together(*models: Model) -> float | None:
    portions = [Portion(model=model, rate_per_s=model.rate_per_s) for model in models]
    return Turns(portions=portions, memory_bytes=1.0).fullness(frozenset(range(len(portions))))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_example_of_the_nexus_paper(algorithm: str) -> None:
    placement = pack(PAPER, algorithm)
    full, other = sorted(placement.nodes, key=lambda node: -node.occupancy)
    if algorithm in ("squishy", "best-fit-decreasing"):
        assert (full.models, other.models) == (("A", "B"), ("C",))
        assert full.duty_ms == pytest.approx(125)
        assert full.occupancy == pytest.approx(1.0)
        assert [share.batch for share in full.shares] == [8, 4]
    assert len(placement.nodes) == 2
    assert violations(PAPER, placement) == []
    assert all(stream.late == 0 for stream in replay(PAPER, placement))


def test_which_pairs_of_the_paper_share_a_device() -> None:
    assert together(A, B) == pytest.approx(1.0)
    assert together(A, C) is None  # 75 + 60 > 125
    assert together(B, C) is not None


def test_one_device_is_exact_against_a_fine_grid_of_cycles() -> None:
    fitting = []
    for seed in range(12):
        workload = random_workload(seed, 3)
        workload = changed(workload, **{each.name: (0.1 + 0.03 * seed) * each.rate_per_s for each in workload.models})
        portions = [Portion(model=each, rate_per_s=each.rate_per_s) for each in workload.models]
        exactly = Turns(portions=portions, memory_bytes=workload.devices.memory_bytes).fullness(frozenset({0, 1, 2}))
        cycles = np.linspace(0.1, max(each.target_ms for each in workload.models), 20_000)
        fits, total = np.full(len(cycles), True), np.zeros(len(cycles))
        for each in workload.models:
            rows = np.maximum(1, np.ceil(cycles * each.rate_per_s / 1e3))
            first, last = each.latency.values
            times = first + (rows - 1) * (last - first) / 63
            total += times
            fits &= (rows <= 64) & (cycles + times <= each.target_ms)
        fits &= total <= cycles
        if fits.any():  # a grid finds no cycle that the points miss, and none of lower occupancy
            assert exactly is not None
            assert exactly <= float(np.min(total[fits] / cycles[fits])) + 1e-6
        fitting.append(bool(fits.any()))
    assert any(fitting)
    assert not all(fitting)


def brute(count: int, fits: Callable[[Items], bool]) -> int:
    """The fewest bins, by giving every item every bin number."""
    for bins in range(1, count + 1):
        for bin_of in itertools.product(range(bins), repeat=count):
            parts = [frozenset(item for item in range(count) if bin_of[item] == number) for number in range(bins)]
            if all(not part or fits(part) for part in parts):
                return bins
    raise AssertionError


def test_subsets_find_the_fewest() -> None:
    chance = random.Random(1)
    for _ in range(10):
        problem = Plain(sizes=[chance.randint(20, 100) for _ in range(6)], capacity=150)
        expected = brute(6, lambda items: sum(problem.sizes[item] for item in items) <= 150)  # noqa: B023
        answer = exact.fewest(problem)
        assert (len(answer.bins), answer.bound) == (expected, expected)
        assert sorted(item for items in answer.bins for item in items) == list(range(6))


def test_the_solver_agrees_with_the_subsets() -> None:
    pytest.importorskip("ortools")
    problem = random_sizes(3, 11)
    expected = len(exact.subsets(problem))
    assert solver.assign(problem.sizes, 150, expected, 5.0)[1] == expected
    assert solver.assign(problem.sizes, 150, expected - 1, 5.0) == (None, expected)
    workload = random_workload(6, 11)
    portions = [Portion(model=each, rate_per_s=each.rate_per_s) for each in workload.models]
    turns = Turns(portions=portions, memory_bytes=workload.devices.memory_bytes)
    expected = len(exact.subsets(turns))
    cover, bound = solver.cover(11, exact._maximal(turns), 1, 11, 5.0)
    assert cover is not None
    assert len(cover) == bound == expected
    assert solver.cover(11, exact._maximal(turns), 1, expected - 1, 5.0) == (None, expected)


def test_fourteen_models_are_proven_too() -> None:
    pytest.importorskip("ortools")
    workload = random_workload(4, 14)
    placement = pack(workload, "exact")
    assert len(placement.nodes) == placement.bound <= len(pack(workload).nodes)
    assert violations(workload, placement) == []


def test_without_the_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    # Three sizes fill each of ten bins, which no heuristic finds.
    parts = [(380 + 11 * n, 255 + 3 * n, 365 - 14 * n) for n in range(10)]
    with pytest.raises(Mistake, match=r"pip install 'triton-batching\[pack\]'"):
        exact.fewest(Plain(sizes=[size for part in parts for size in part], capacity=1000))


def test_a_model_that_fills_devices_gets_whole_ones() -> None:
    busy = replace(A, rate_per_s=400)  # 16 rows in 100 ms: 160 requests/s fill a device
    workload = Workload(devices=Devices(count=3, memory_bytes=1.0), models=(busy,))
    placement = pack(workload)
    assert [node.shares[0].rate_per_s for node in placement.nodes] == pytest.approx([160, 160, 80])
    assert placement.bound == 3
    with pytest.raises(Mistake, match="3 devices are needed"):
        pack(replace(workload, devices=Devices(count=2, memory_bytes=1.0)))
    with pytest.raises(Mistake, match="two executions of one row take 100 ms"):
        pack(replace(workload, models=(replace(A, target_ms=99),)))


def test_memory_separates_models_that_time_would_not() -> None:
    memory = Curve(sizes=(1, 16), values=(0.6, 0.6))
    workload = replace(PAPER, models=(replace(A, memory=memory), replace(B, memory=memory)))
    assert len(pack(workload).nodes) == 2
    assert len(pack(replace(workload, devices=Devices(count=2, memory_bytes=1.2))).nodes) == 1
    with pytest.raises(Mistake, match="has 0 MiB"):
        pack(replace(workload, devices=Devices(count=2, memory_bytes=0.5)))


def test_a_measured_pair_runs_at_the_same_time() -> None:
    workload = replace(PAPER, devices=Devices(count=1, memory_bytes=1.0), models=(A, C))
    with pytest.raises(Mistake, match="2 devices"):
        pack(workload)
    beside = replace(workload, pairs=(Pair(models=("A", "C"), factors=(1.1, 1.2)),))
    for algorithm in ALGORITHMS:
        placement = pack(beside, algorithm)
        assert [(node.models, node.together) for node in placement.nodes] == [(("A", "C"), True)]
        assert violations(beside, placement) == []
        assert all(stream.late == 0 for stream in replay(beside, placement))
    assert "not" in " ".join(violations(workload, placement))  # nobody measured them together
    with pytest.raises(Mistake, match="2 devices"):
        pack(replace(workload, pairs=(Pair(models=("A", "C"), factors=(2.0, 2.0)),)), "exact")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 7}, "arrive in a cycle and 7 are executed"),
        ({"exec_ms": 70.0}, "8 rows take 75 ms, not 70"),
        ({"rate_per_s": 60.0}, "60 of 64 requests per second are placed"),
        ({"model": "Z"}, "Z: is not a model of the plan"),
        ({"batch": 17}, "17 was not measured"),
    ],
)
def test_the_validator_sees_a_changed_share(change: dict[str, object], message: str) -> None:
    placement = pack(PAPER)
    first, *others = placement.nodes
    shares = (replace(first.shares[0], **change), *first.shares[1:])  # type: ignore[arg-type]
    broken = replace(placement, nodes=(replace(first, shares=shares), *others))
    assert any(message in text for text in violations(PAPER, broken)), violations(PAPER, broken)


def test_the_validator_sees_a_changed_device() -> None:
    placement = pack(PAPER)
    first, other = placement.nodes
    short, long = (replace(placement, nodes=(replace(first, duty_ms=ms), other)) for ms in (120.0, 130.0))
    assert violations(PAPER, short) == ["device 0: its executions take 125 ms of a cycle of 120 ms"]
    assert any("up to 205 ms, target 200 ms" in text for text in violations(PAPER, long))
    assert violations(replace(PAPER, devices=Devices(count=1, memory_bytes=1.0)), placement) != []


def test_a_placement_comes_back_from_its_file(tmp_path: Path) -> None:
    placement = pack(PAPER)
    assert Placement.read(placement.write(tmp_path)) == placement
    (tmp_path / "placement.json").write_text("{}")
    with pytest.raises(Mistake, match=r"not a record of kind .placement."):
        Placement.read(tmp_path / "placement.json")


def changed(workload: Workload, **rates: float) -> Workload:
    models = tuple(replace(each, rate_per_s=rates.get(each.name, each.rate_per_s)) for each in workload.models)
    return replace(workload, models=models)


def test_replanning_moves_only_what_must() -> None:
    old = pack(PAPER)
    roomy = replace(PAPER, devices=Devices(count=3, memory_bytes=1.0))
    assert replan(changed(roomy, C=30), old).moves == ()
    moved = replan(changed(roomy, B=36), old)  # A and B do not fit with it; B fits with C
    assert [str(move) for move in moved.moves] == ["B moves from device 0 to device 1"]
    assert violations(changed(roomy, B=36), moved.placement) == []
    more = replan(changed(roomy, A=64 + 160), old)
    assert [str(move) for move in more.moves] == ["A starts on device 2"]
    fewer = replan(replace(roomy, models=(A, B)), old)
    assert [str(move) for move in fewer.moves] == ["C stops on device 1"]
    assert len(fewer.placement.nodes) == 1


def test_replanning_many_models_breaks_no_target() -> None:
    for seed in range(6):
        workload, chance = random_workload(seed, 9), random.Random(seed)
        new = changed(workload, **{each.name: each.rate_per_s * chance.uniform(0.8, 1.1) for each in workload.models})
        replanned = replan(new, pack(workload))
        assert violations(new, replanned.placement) == []
        assert len(replanned.moves) < 9
