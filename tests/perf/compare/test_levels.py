"""Two sides that are the same, with one and with many loads: how often the gate fails."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perf.compare.comparison import compare as lines_of
from perf.records.runs import Run, Runs
from tests.perf.compare.test_compare import measured


def of_the_same(seed: int, loads: int, deviation: float) -> list[list[Run]]:
    """Five rounds of A and five of B, in turn, which are the same: each quantity has noise of its own."""
    rng, sides = np.random.default_rng(seed), []
    for first_s in (0, 10):
        side = []
        for load in range(loads):
            for run in measured([1000.0] * 5, first_s=first_s):
                speed, p50, p99 = np.exp(rng.normal(0, deviation, 3)) * (run.throughput_rows_per_s, 2e4, 5e4)
                quantities = {"throughput_rows_per_s": speed, "p50_us": p50, "p99_us": p99}
                side.append(replace(run, load=f"closed:{load}", **quantities))
        sides.append(side)
    return sides


@pytest.mark.slow
@pytest.mark.parametrize(("loads", "repetitions"), [(1, 300), (8, 60)])
def test_one_of_many_comparisons_of_the_same_is_slower_in_one_of_twenty_cases(loads: int, repetitions: int) -> None:
    """A/A with 3 and 24 intervals; a single one at 95 % makes the gate fail in 7 % and 45 % of the cases."""
    alarms = 0
    for seed in range(repetitions):
        old, new = of_the_same(seed, loads, 0.05)
        lines = lines_of(Runs(title="a", runs=tuple(old)), Runs(title="b", runs=tuple(new)))
        levels = {(line.ratio.level, line.gate.level) for line in lines}
        assert levels == {(1 - 0.05 / 3, 1 - 0.05 / (3 * loads))}
        alarms += any(line.regressed(0.0) for line in lines)
    # Up to three standard errors more.
    assert alarms <= (0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)) * repetitions
