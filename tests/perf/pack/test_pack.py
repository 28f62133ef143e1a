"""Packing: an example by hand, an exact check, and the validator."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perf.pack.algorithms import GREEDY, pack, remainders
from perf.pack.duty import Items, Portion, Turns
from perf.pack.greedy import best_fit_decreasing
from perf.pack.improve import improve
from perf.pack.placement import Placement
from perf.pack.validator import violations
from perf.pack.workload import Curve, Devices, Model, Workload
from perf.records import file
from triton_batching.terminal import Mistake

# The checks that a workload of up to 11 models may take, as perf/pack/README.md says.
FEW = 60_000
NOTHING = Curve(sizes=(1, 16), values=(0.0, 0.0))


def model(name: str, rate: float, target: float, times: tuple[float, ...], memory: Curve = NOTHING) -> Model:
    latency = Curve(sizes=(4, 8, 16), values=times)
    return Model(name=name, rate_per_s=rate, target_ms=target, latency=latency, memory=memory)


A = model("A", 64, 200, (50.0, 75.0, 100.0))
B = model("B", 32, 250, (50.0, 90.0, 125.0))
C = model("C", 32, 250, (60.0, 95.0, 125.0))
PLAN = Workload(devices=Devices(count=3, memory_bytes=1.0), models=(A, B, C), arrivals="uniform")


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


def test_a_plan_with_too_many_models_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf.pack.duty.CHECKS", 3)
    with pytest.raises(Mistake, match="3 models that do not fill a device are too many"):
        pack(PLAN)


def test_models_share_a_device_in_half_of_their_target() -> None:
    """In 125 ms B and C have 4 requests each, which take 110; A has 8, which leave no time for others."""
    alone, shared = sorted(pack(PLAN).nodes, key=lambda node: node.models)
    assert (alone.models, shared.models) == (("A",), ("B", "C"))
    assert [share.batch for share in (*alone.shares, *shared.shares)] == [8, 4, 4]
    assert (alone.duty_ms, alone.delay_ms, alone.longest_ms(alone.shares[0])) == (125, 0, 200)
    assert (shared.duty_ms, shared.delay_ms, shared.longest_ms(shared.shares[0])) == (125, 125, 250)
    assert violations(PLAN, pack(PLAN)) == []


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
            fits &= (rows <= 64) & (2 * cycles <= each.target_ms)
        fits &= total <= cycles
        if fits.any():  # a grid finds no cycle that the points miss, and none of lower occupancy
            assert exactly is not None
            assert exactly <= float(np.min(total[fits] / cycles[fits])) + 1e-6
        fitting.append(bool(fits.any()))
    assert any(fitting)
    assert not all(fitting)


def fewest(problem: Turns) -> int:
    """The fewest devices, by trying every one that could hold the lowest item that is left."""
    found: dict[Items, int] = {frozenset(): 0}

    def of(left: Items) -> int:
        if left not in found:
            low, *others = sorted(left)
            parts = (set(each) for count in range(len(others) + 1) for each in itertools.combinations(others, count))
            sets = (frozenset({low} | part) for part in parts)
            found[left] = 1 + min(of(left - items) for items in sets if problem.fullness(items) is not None)
        return found[left]

    return of(frozenset(range(problem.count)))


@pytest.mark.slow
def test_no_packing_has_fewer_devices_than_the_improved_one() -> None:
    """That of all sets that fit, and no heuristic; the search for it checks few sets, counted, since seconds depend."""
    fewer = []
    for seed in (*range(12), 23, 47, 59):
        workload = random_workload(seed, 5 + seed % 6)
        whole, problem = remainders(workload)
        placement = pack(workload)
        assert len(placement.nodes) == len(whole) + fewest(problem), seed
        assert violations(workload, placement) == []
        greedy = len(pack(workload, GREEDY).nodes)
        assert len(placement.nodes) <= greedy
        fewer.append(len(placement.nodes) < greedy)
        counted = remainders(workload)[1]
        improve(counted, best_fit_decreasing(counted), bound=counted.least)
        assert counted.checked <= FEW, seed
    assert any(fewer)


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
    workload = replace(PLAN, models=(replace(B, memory=memory), replace(C, memory=memory)))
    assert len(pack(workload).nodes) == 2
    assert len(pack(replace(workload, devices=Devices(count=2, memory_bytes=1.2))).nodes) == 1
    with pytest.raises(Mistake, match="has 0 MiB"):
        pack(replace(workload, devices=Devices(count=2, memory_bytes=0.5)))


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
    placement = pack(PLAN)
    first, *others = placement.nodes
    shares = (replace(first.shares[0], **change), *first.shares[1:])  # type: ignore[arg-type]
    broken = replace(placement, nodes=(replace(first, shares=shares), *others))
    assert any(message in text for text in violations(PLAN, broken)), violations(PLAN, broken)


def test_a_placement_comes_back_from_its_file(tmp_path: Path) -> None:
    placement = pack(PLAN)
    assert file.read(placement.write(tmp_path), Placement) == placement


def changed(workload: Workload, **rates: float) -> Workload:
    models = tuple(replace(each, rate_per_s=rates.get(each.name, each.rate_per_s)) for each in workload.models)
    return replace(workload, models=models)
