"""Requests that are late together count as fewer: intervals, verdicts and looks stay as certain as they say."""

import numpy as np
import pytest

from perf.stats.dependence import design_effect
from perf.stats.latency_target import judge
from perf.stats.quantile import quantile
from tests.perf.stats.series import latencies, true_percentile

KINDS = ["independent", "alike 0.8", "alike 0.95", "batches 8", "batches 32"]
RUNS = 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percent", [50.0, 99.0])
def test_intervals_of_percentiles_hold_the_truth(kind: str, percent: float) -> None:
    true = true_percentile(percent) / 1e3
    intervals = [quantile(run.tolist(), percent) for run in latencies(kind, RUNS, 2000, seed=1)]
    # Three standard errors of a share of 5 % among 300 are 3.8 %.
    assert np.mean([each.low_ms <= true <= each.high_ms for each in intervals]) >= 0.92
    if percent == 50:
        assert np.median([each.high_ms / each.low_ms for each in intervals]) < 1.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_system_at_its_target_is_passed_and_failed_in_one_of_a_hundred_cases(kind: str) -> None:
    """Every verdict on a system with exactly 1 % late is wrong. Nominal is 1 % a side, and 1 % more is allowed."""
    limit, runs = true_percentile(99), latencies(kind, RUNS, 2000, seed=2)
    late = [int(np.sum(run > limit)) for run in runs]
    verdicts = [
        judge(len(run), number, 0.01, design_effect=design_effect(run, 0.01))
        for run, number in zip(runs, late, strict=True)
    ]
    assert max(verdicts.count(True), verdicts.count(False)) <= 0.02 * RUNS
    if kind.startswith("batches"):
        as_independent = [judge(2000, number, 0.01) for number in late]
        assert min(as_independent.count(True), as_independent.count(False)) > 0.06 * RUNS


@pytest.mark.slow
def test_a_system_within_its_target_passes_however_alike_its_requests_are() -> None:
    """0.5 % late where 1 % may be: with enough requests the verdict is certain."""
    limit = true_percentile(99.5)
    for kind in ("independent", "batches 8"):
        runs = latencies(kind, 20, 60_000, seed=4)
        verdicts = [
            judge(len(run), int(np.sum(run > limit)), 0.01, design_effect=design_effect(run, 0.01)) for run in runs
        ]
        assert verdicts.count(True) >= 18
