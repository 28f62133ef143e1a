"""Every tool has the same verdict on the same trials: `perf.tune`, `perf.report`, the grid's judgement, `perf.load`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import CHOSEN, study

from perf.load.target_check import TargetCheck
from perf.records import file, target_verdict
from perf.records.load_record import Sample
from perf.records.study import HALVING, LatencyTarget, Trial
from perf.report.study.evidence import Evidence
from perf.report.study.verdict import passes
from perf.stats.latency_target import judge_trials
from perf.studies.grid import record as grid_record
from perf.tune.pooled_trials import PooledTrials
from tests.perf.stats.series import latencies, true_percentile

TARGET = LatencyTarget(latency_ms=40)
JUDGED = Path("perf/studies/results/grid/ranker.closed-32.p99-75ms.judged.json")


def trial(latencies_ms: Sequence[float]) -> Trial:
    """A trial of the chosen configuration with these latencies."""
    late = sum(ms > TARGET.latency_ms for ms in latencies_ms)
    us = tuple(1e3 * ms for ms in latencies_ms)
    return replace(study().trials[2], stage=HALVING, latencies_us=us, requests=len(us), late=late, early=False)


def in_report(trials: Sequence[Trial]) -> bool | None:
    return passes(Evidence(study=replace(study(), trials=tuple(trials)), name="study"), CHOSEN)


def in_grid(trials: Sequence[Trial]) -> bool:
    """Whether a judgement on these trials says that the choice surely misses the target."""
    known = file.read(JUDGED, grid_record.GridJudgement)
    points = tuple(replace(grid_record.counted(each, TARGET), stage=grid_record.TUNED) for each in trials)
    return replace(known, sla=TARGET, points=points).misses


def random_trials(seed: int) -> list[Trial]:
    """One to four trials whose requests depend on each other, at, below or above the target."""
    rng = np.random.default_rng(seed)
    kind = ["independent", "alike 0.95", "batches 8", "batches 32"][seed % 4]
    scale = TARGET.latency_ms / true_percentile(99) * rng.choice([0.5, 0.8, 1.0, 1.4])
    return [trial((scale * run).tolist()) for run in latencies(kind, int(rng.integers(1, 5)), 1500, seed)]


# Late in one stall that two trials would share if one followed the other at once; and one trial of one bad minute.
STALL = [1.0] * 640 + [60.0] * 60
OTHERS = [
    [trial([1.0] * 500)],
    [trial([1.0] * 500)] * 2,
    [trial(STALL), trial(STALL[::-1])],
    [trial([60.0] * 700), *[trial([1.0] * 700)] * 3],
    [trial([60.0] * 300), trial([math.inf] * 300)],
]


@pytest.mark.parametrize("trials", [*map(random_trials, range(40)), *OTHERS])
def test_all_tools_have_the_same_verdict_on_the_same_trials(trials: list[Trial]) -> None:
    pooled = PooledTrials.of(trials, TARGET)
    assert in_report(trials) is pooled.passed
    assert in_grid(trials) is (pooled.passed is False)
    one = judge_trials([target_verdict.count(each, TARGET) for each in trials], TARGET, looked=True)
    assert (one.requests, one.late, one.design_effect) == (pooled.requests, pooled.late, pooled.design_effect)
    assert one.passed is pooled.passed
    if len(trials) == 1:
        sample = Sample(due_s=(0.0,) * pooled.requests, latencies_us=trials[0].latencies_us)
        assert TargetCheck(target=TARGET).judgement(sample, early=False) == one


def test_a_trial_without_all_its_latencies_counts_as_one_request() -> None:
    """201 of 5,000 latencies, sorted, say nothing on which requests were late together."""
    none, every = (replace(trial([ms] * 201), requests=5000, late=late) for ms, late in ((1.0, 0), (60.0, 5000)))
    for trials, requests, worth, passed in (([none] * 3, 15_000, 3, None), ([every] * 2, 10_000, 2, False)):
        pooled = PooledTrials.of(trials, TARGET)
        assert (pooled.requests, pooled.requests / pooled.design_effect) == (requests, worth)
        assert pooled.passed is in_report(trials) is passed
        assert in_grid(trials) is (passed is False)
