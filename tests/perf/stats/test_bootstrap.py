"""Intervals on the ratio of two runs: they hold the true ratio as often as they say, and keep blocks together."""

import math
from functools import partial

import numpy as np
import pytest

from perf.stats import bootstrap
from perf.stats.interval import Interval
from perf.stats.percentile import percentile
from tests.perf.stats.series import latencies

TRUE = 1.1


def coverage(intervals: list[Interval]) -> float:
    """Share of intervals that hold the true ratio."""
    return float(np.mean([interval.low <= TRUE <= interval.high for interval in intervals]))


@pytest.mark.parametrize("percent", [50.0, 99.0])
def test_blocks_of_correlated_requests_hold_the_truth_and_single_requests_do_not(
    percent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of 2,000 requests a side, each like the one before it."""
    statistic, runs = partial(percentile, percent=percent), 200
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    new, old = TRUE * latencies("alike 0.8", runs, 2000, seed=9), latencies("alike 0.8", runs, 2000, seed=10)

    def intervals() -> list[Interval]:
        return [bootstrap.series(new[run].tolist(), old[run].tolist(), statistic, seed=run) for run in range(runs)]

    assert 0.90 <= coverage(intervals()) <= 0.99
    monkeypatch.setattr(bootstrap, "block_length", lambda values: 1)
    assert coverage(intervals()) < 0.80


def test_blocks_are_longer_the_stronger_the_correlation() -> None:
    alone, alike, more = (
        np.median([bootstrap.block_length(run) for run in latencies(kind, 9, 2000, seed=2)])
        for kind in ("independent", "alike 0.8", "alike 0.95")
    )
    assert alone <= 5 < 15 < alike < more
    assert bootstrap.block_length(np.ones(100)) == 1


def test_a_ratio_too_large_for_a_float_is_infinite() -> None:
    median = partial(percentile, percent=50)
    assert bootstrap.series([1e308] * 20, [1e-300] * 20, median).value == math.inf
    assert bootstrap.series([1e308, 1.0] * 10, [1.0] * 20, median).high >= 1


def test_a_run_without_values_has_no_interval() -> None:
    some, none = [1.0] * 9, list[float]()
    for new, old in ((none, some), (some, none), (none, none)):
        interval = bootstrap.series(new, old, bootstrap.mean)
        assert (math.isnan(interval.value), interval.low, interval.high) == (True, 0.0, math.inf)
        assert (interval.count, interval.method) == (0, "no interval")


def test_a_percentile_among_unanswered_requests_is_unbounded() -> None:
    answered = [*np.linspace(1, 2, 95).tolist(), *[math.inf] * 5]
    assert bootstrap.series(answered, answered, partial(percentile, percent=99)).excludes_one is False
    median = bootstrap.series(answered, answered, partial(percentile, percent=50))
    assert 0.5 < median.low <= 1.0 <= median.high < 2.0


def test_resamples_are_made_of_blocks_that_go_round_the_end() -> None:
    picked = bootstrap.picks(10, 4, 500, np.random.default_rng(0))
    assert picked.shape == (500, 10)
    # Within a block each index follows the one before; a block begins at any index.
    steps = np.diff(picked) % 10
    assert np.all(np.delete(steps, [3, 7], axis=1) == 1)
    assert set(picked[:, 4].tolist()) == set(range(10))
