"""The improved packer: the default, never worse than a heuristic, with a stated number of checks."""

import pytest

from perf.pack.algorithms import GREEDY, IMPROVED, pack, remainders
from perf.pack.greedy import best_fit_decreasing
from perf.pack.improve import CHECKS, improve
from perf.pack.problem import Counted, SpentError
from tests.perf.pack.test_pack import random_sizes, random_workload

# The checks that a workload of up to 11 models may take, as perf/pack/README.md says.
FEW = 60_000


def test_it_keeps_every_item_once() -> None:
    problem = random_sizes(2, 40)
    after = improve(problem, best_fit_decreasing(problem))
    assert len(after) < len(best_fit_decreasing(problem))
    assert sorted(item for items in after for item in items) == list(range(40))
    assert all(sum(problem.sizes[item] for item in items) <= 150 for items in after)


def test_it_needs_no_more_devices_than_any_heuristic_and_sometimes_fewer() -> None:
    fewer = []
    for seed in range(20):
        workload = random_workload(seed, 5 + seed % 7)
        devices = {name: len(pack(workload, name).nodes) for name in (*GREEDY, IMPROVED)}
        assert devices[IMPROVED] == min(devices.values()), seed
        fewer.append(devices[IMPROVED] < devices["squishy"])
    assert sum(fewer) >= 3


def test_it_takes_few_checks() -> None:
    """Counted, since seconds depend on the machine."""
    for seed in range(20):
        _, problem = remainders(random_workload(seed, 5 + seed % 7))
        counted = Counted(problem=problem, most=CHECKS)
        improve(counted, min((greedy(problem) for greedy in GREEDY.values()), key=len), bound=problem.least)
        assert counted.checked <= FEW, seed


@pytest.mark.parametrize("checks", [0, 1, 10, 100, 1000])
def test_it_ends_after_the_stated_number_of_checks(checks: int) -> None:
    counted = Counted(problem=random_sizes(2, 40), most=CHECKS)
    before = best_fit_decreasing(counted.problem)
    after = improve(counted, before, checks=checks)
    assert counted.checked <= checks
    assert len(after) <= len(before)
    assert sorted(item for items in after for item in items) == list(range(40))


def test_more_checks_than_allowed_are_an_error() -> None:
    counted = Counted(problem=random_sizes(2, 3), most=2)
    assert [counted.fullness(frozenset({item})) for item in (0, 1)] == [counted.size(item) for item in (0, 1)]
    with pytest.raises(SpentError):
        counted.fullness(frozenset({2}))
