"""Trials of a study put together: all requests of one configuration, and the rounds of the last comparison."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perf.records.candidate import Candidate
from perf.records.resource_use import ResourceUse
from perf.records.study import AGAINST, FINAL, NOISE, LatencyTarget, Trial
from perf.records.traffic import Traffic
from perf.stats.dependence import design_effect
from perf.stats.latency_target import glance
from perf.stats.percentile import percentile_ms


def p99_ms(trial: Trial) -> float:
    """Return the 99th percentile latency of one trial, in milliseconds."""
    return percentile_ms(trial.latencies_us, 99)


@dataclass(frozen=True, kw_only=True)
class PooledTrials:
    """All trials of one configuration under one load, as one.

    `passed` is the binomial rule's verdict on them: whether the target is met, None if they are too few to be sure. The
    rule is the one for repeated looks, because what the trials showed decided how many there are. The requests are
    worth `requests` / `design_effect` independent ones.
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
        latencies = np.concatenate([np.asarray(trial.latencies_us, dtype=np.float64) for trial in trials])
        late = int(np.sum(latencies > target.latency_ms * 1e3))
        effects = [_design_effect(trial.latencies_us, target.share) for trial in trials]
        # A trial without requests has no weight.
        effect = float(np.average(effects, weights=[max(trial.requests, 1e-9) for trial in trials]))
        seconds = sum(trial.seconds for trial in trials)
        traffic = Traffic.parse(trials[0].load)
        return cls(
            candidate=trials[0].candidate,
            trials=tuple(trials),
            throughput_rows_per_s=sum(trial.throughput_rows_per_s * trial.seconds for trial in trials) / seconds,
            offered_rows_per_s=len(latencies) * rows / seconds if traffic.open else None,
            p99_ms=percentile_ms(latencies, 99),
            requests=len(latencies),
            late=late,
            design_effect=effect,
            passed=glance(len(latencies), late, target.share, design_effect=effect) if len(latencies) else None,
        )

    @property
    def worst_p99_ms(self) -> float:
        """99th percentile of the worst trial."""
        return max(p99_ms(trial) for trial in self.trials)

    @property
    def used(self) -> ResourceUse:
        """The most that the server used in any of the trials."""
        return ResourceUse.of((trial.used for trial in self.trials), max)


@functools.lru_cache(maxsize=256)
def _design_effect(latencies_us: tuple[float, ...], share: float) -> float:
    """The design effect of one trial, which a search asks for again after each further trial."""
    return design_effect(latencies_us, share)


def last_rounds(trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial], list[tuple[Trial, Trial]]]:
    """Return the last comparison's trials of the choice and of the default, numbered alike, and the A/A pairs.

    The default's trials are its `AGAINST` and `NOISE` ones, in the order of measurement.
    """
    final = [trial for trial in trials if trial.stage == FINAL]
    last = final[-1].candidate if final else None
    chosen = [trial for trial in final if trial.candidate == last]
    # An earlier choice, which failed, had trials of the default of its own.
    defaults = [trial for trial in trials if trial.stage in (AGAINST, NOISE)][-max(1, len(chosen)) :]
    same = defaults if defaults and defaults[0].candidate != last else chosen + defaults
    return (
        [replace(trial, round=number) for number, trial in enumerate(chosen, 1)],
        [replace(trial, round=number) for number, trial in enumerate(defaults, 1)],
        list(zip(same[1:], same, strict=False)),
    )
