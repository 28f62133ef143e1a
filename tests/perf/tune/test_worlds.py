"""The search in invented worlds, whose best configuration is known and which the simulation believes wrongly."""

from pathlib import Path

import numpy as np
import pytest
from invented_worlds import InventedWorld, candidates

from perf.records.candidate import Candidate
from perf.records.study import FINAL, Study
from perf.tune.comparison import Comparison
from perf.tune.search import Search

WORLDS = 100


@pytest.fixture(scope="module")
def found() -> list[tuple[InventedWorld, Search, Comparison | None]]:
    """One search in each world, and what it found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Study, "write", lambda study, path: path)
        worlds = [InventedWorld.drawn(seed) for seed in range(WORLDS)]
        searches = [(world, world.search(Path("/nonexistent/study.json"))) for world in worlds]
        return [(world, search, search.run().comparison) for world, search in searches]


Found = list[tuple[InventedWorld, Search, Comparison | None]]


def feasible(world: InventedWorld) -> list[Candidate]:
    """The candidates that truly meet the target with the margin."""
    return [each for each in candidates(world.true) if world.true.p99_ms(each) <= world.goal.limit_ms]


@pytest.mark.slow
def test_a_configuration_is_found_wherever_one_meets_the_target(found: Found) -> None:
    assert all(feasible(world) for world, _, _ in found)
    assert [world.seed for world, _, comparison in found if comparison is None] == []
    for world, _, comparison in found:
        assert comparison is not None
        assert world.true.p99_ms(comparison.chosen.candidate) <= world.target.latency_ms


@pytest.mark.slow
def test_the_choice_is_near_the_best(found: Found) -> None:
    shares = []
    for world, _, comparison in found:
        assert comparison is not None
        best = max(map(world.true.rate, feasible(world)))
        shares.append(world.true.rate(comparison.chosen.candidate) / best)
    assert np.mean(np.array(shares) >= 0.97) >= 0.95


@pytest.mark.slow
def test_the_printed_gain_holds(found: Found) -> None:
    """Its interval has the true gain; at the first look it does so with 98 %."""
    held = []
    for world, search, comparison in found:
        assert comparison is not None
        for gain in comparison.gains[:1]:
            assert gain.interval is not None
            true = world.true.rate(comparison.chosen.candidate) / world.true.rate(search.default)
            held.append(gain.interval.low <= true <= gain.interval.high)
    assert len(held) >= WORLDS / 2
    # Of 100 intervals of 98 % fewer than 93 % hold about once in a thousand times.
    assert np.mean(held) >= 0.93


def test_no_search_costs_more_than_its_budget(found: Found) -> None:
    for _, search, comparison in found:
        assert comparison is not None
        assert search.budget.profile_points + search.log.points <= search.budget.points == 13
        assert search.budget.profile_s + search.log.live_s <= search.budget.seconds == 90.0
        assert {trial.stage for trial in comparison.final} == {FINAL}
