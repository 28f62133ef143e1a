"""Intervals on ratios: they hold the true ratio as often as they say, and keep pairs and blocks together."""

import math
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from perf.stats import bootstrap
from perf.stats.bootstrap import Interval
from perf.stats.percentile import percentile

TRUE = 1.1
REPEATS = 300


def coverage(intervals: list[Interval]) -> float:
    """Share of intervals that hold the true ratio."""
    return float(np.mean([interval.low <= TRUE <= interval.high for interval in intervals]))


@pytest.mark.parametrize("rounds", [3, 5, 10, 30])
def test_intervals_of_rounds_hold_the_truth_as_often_as_they_say(rounds: int) -> None:
    """Rounds that differ by 10 %, from which the two sides of a round differ by 2 %."""
    rng = np.random.default_rng(rounds)
    drift, old, new = (rng.normal(0, spread, (REPEATS, rounds)) for spread in (0.1, 0.02, 0.02))
    first, second = np.exp(drift + old), TRUE * np.exp(drift + new)
    paired = [bootstrap.paired(second[row].tolist(), first[row].tolist(), seed=row) for row in range(REPEATS)]
    assert 0.90 <= coverage(paired) <= 0.99
    apart = [bootstrap.unpaired(second[row].tolist(), first[row].tolist(), seed=row) for row in range(REPEATS)]
    assert coverage(apart) >= 0.90
    # What rounds have in common is in the interval only of those that are not paired.
    assert np.median([interval.high / interval.low for interval in paired]) < np.median(
        [interval.high / interval.low for interval in apart]
    )


def latencies(rng: np.random.Generator, runs: int, likeness: float, requests: int = 2000) -> NDArray[np.float64]:
    """(runs, requests), lognormal, each correlated with the one before by `likeness` (in the logarithm)."""
    values = [rng.normal(size=runs)]
    for step in rng.normal(0, math.sqrt(1 - likeness**2), (requests - 1, runs)):
        values.append(likeness * values[-1] + step)
    return np.asarray(np.exp(0.3 * np.transpose(values)), dtype=np.float64)


@pytest.mark.parametrize("percent", [50.0, 99.0])
def test_blocks_of_correlated_requests_hold_the_truth_and_single_requests_do_not(
    percent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of 2,000 requests a side, each like the one before it."""
    statistic, runs = partial(percentile, percent=percent), 60
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    rng = np.random.default_rng(9)
    new, old = TRUE * latencies(rng, runs, 0.8), latencies(rng, runs, 0.8)

    def intervals() -> list[Interval]:
        return [bootstrap.series(new[run].tolist(), old[run].tolist(), statistic, seed=run) for run in range(runs)]

    assert 0.90 <= coverage(intervals()) <= 0.99
    monkeypatch.setattr(bootstrap, "block_length", lambda values: 1)
    assert coverage(intervals()) < 0.80


def test_blocks_are_longer_the_stronger_the_correlation() -> None:
    rng = np.random.default_rng(2)
    alone, alike, more = (
        np.median([bootstrap.block_length(run) for run in latencies(rng, 9, likeness)]) for likeness in (0.0, 0.8, 0.95)
    )
    assert alone <= 5 < 15 < alike < more
    assert bootstrap.block_length(np.ones(100)) == 1


def test_few_rounds_give_students_t_and_one_round_no_interval() -> None:
    three = bootstrap.paired([1.1, 1.21, 1.331], [1.0, 1.1, 1.1])
    # Logarithms 1, 1, 2 x log 1.1: mean 4/3, standard error 1/3, t 4.303.
    step = math.log(1.1)
    assert (three.value, three.low, three.high) == pytest.approx(
        [math.exp(step * (4 / 3 + sign * 4.3027 / 3)) for sign in (0, -1, 1)], rel=1e-4
    )
    interval = bootstrap.paired([1.1], [1.0])
    assert interval.value == pytest.approx(1.1)
    assert (interval.low, interval.high, interval.excludes_one) == (0.0, math.inf, False)
    assert not bootstrap.unpaired([1.1], [1.0, 1.0]).excludes_one


def test_a_ratio_too_large_for_a_float_is_infinite() -> None:
    for interval in (bootstrap.paired, bootstrap.unpaired):
        assert interval([1e308], [1e-300]).value == math.inf
        assert interval([1e308, 1e300], [1.0, 1.1]).high == math.inf
        assert interval([1e308] * 5, [1e-300] * 5).high == math.inf
    median = partial(percentile, percent=50)
    assert bootstrap.series([1e308] * 20, [1e-300] * 20, median).value == math.inf
    assert bootstrap.series([1e308, 1.0] * 10, [1.0] * 20, median).high >= 1


def test_the_interval_of_the_inverse_ratio_is_the_inverse() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.uniform(1, 1.2, 8).tolist(), rng.uniform(1, 1.2, 8).tolist()
    there, back = bootstrap.paired(a, b), bootstrap.paired(b, a)
    assert back.value == pytest.approx(1 / there.value)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low), rel=2e-3)
    assert bootstrap.paired(a, b) == there


def test_a_percentile_among_unanswered_requests_is_unbounded() -> None:
    answered = [*np.linspace(1, 2, 95).tolist(), *[math.inf] * 5]
    assert bootstrap.series(answered, answered, partial(percentile, percent=99)).excludes_one is False
    median = bootstrap.series(answered, answered, partial(percentile, percent=50))
    assert 0.5 < median.low <= 1.0 <= median.high < 2.0
