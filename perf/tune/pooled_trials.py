"""Trials of a study put together: all requests of one configuration."""

from collections.abc import Sequence
from dataclasses import dataclass

from perf.records.candidate import Candidate
from perf.records.last_comparison import p99_ms, rows_per_s
from perf.records.resource_use import ResourceUse
from perf.records.study import LatencyTarget, Trial
from perf.records.target_verdict import of_trials
from perf.records.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class PooledTrials:
    """All trials of one configuration under one load, as one.

    `passed` is the verdict of `perf.records.target_verdict` on them: whether the target is met, None if they cannot
    tell. The requests are worth `requests` / `design_effect` independent ones.
    """

    candidate: Candidate
    trials: tuple[Trial, ...]
    throughput_rows_per_s: float
    offered_rows_per_s: float | None
    p99_ms: float
    requests: int
    late: int
    design_effect: float
    passed: bool | None

    @classmethod
    def of(cls, trials: Sequence[Trial], target: LatencyTarget, *, rows: int = 1) -> "PooledTrials":
        """Pool trials whose requests have `rows` rows; raises `ValueError` unless all are of one configuration."""
        if len({trial.candidate for trial in trials}) != 1:
            raise ValueError("trials of one configuration are needed")
        judged = of_trials(trials, target)
        seconds = sum(trial.seconds for trial in trials)
        traffic = Traffic.of_record(trials[0].load)
        return cls(
            candidate=trials[0].candidate,
            trials=tuple(trials),
            throughput_rows_per_s=rows_per_s(trials),
            offered_rows_per_s=judged.requests * rows / seconds if traffic.open else None,
            p99_ms=p99_ms(trials),
            requests=judged.requests,
            late=judged.late,
            design_effect=judged.design_effect,
            passed=judged.passed,
        )

    @property
    def worst_p99_ms(self) -> float:
        """99th percentile of the worst trial."""
        return max(trial.p99_ms for trial in self.trials)

    @property
    def used(self) -> ResourceUse:
        """The most that the server used in any of the trials."""
        return ResourceUse.of((trial.used for trial in self.trials), max)
