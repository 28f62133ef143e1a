"""The verdict of the trials of a study on its latency target; `perf.tune` and `perf.report` both ask here."""

import functools
from collections.abc import Sequence

from perf.records.study import Trial
from perf.stats.latency_target import CONFIDENCE, Judgement, LatencyTarget, TrialCount, judge_trials


def of_trials(trials: Sequence[Trial], target: LatencyTarget, *, confidence: float = CONFIDENCE) -> Judgement:
    """The verdict on all trials of one configuration under one load, of a study or a part of one.

    What the trials of a study show decides how many there are, so the rule is the one for any number of looks, for one
    trial as well. A trial whose record has fewer latencies than requests counts as one request, see
    `TrialCount.without_latencies`.
    """
    return judge_trials([count(trial, target) for trial in trials], target, looked=True, confidence=confidence)


def count(trial: Trial, target: LatencyTarget) -> TrialCount:
    """What one trial tells of the target."""
    if trial.thinned:
        return TrialCount.without_latencies(trial.requests, trial.late)
    return _of(trial.latencies_us, target)


@functools.lru_cache(maxsize=256)
def _of(latencies_us: tuple[float, ...], target: LatencyTarget) -> TrialCount:
    """The count of one trial, which a search asks for again after each further trial."""
    return TrialCount.of(latencies_us, target)
