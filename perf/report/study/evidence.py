"""A study sorted for its report: trials by candidate and load, and pairs of trials from the same round."""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perf.records import decision
from perf.records.candidate import Candidate
from perf.records.decision import Decision
from perf.records.last_comparison import LastComparison, last_comparison
from perf.records.resource_use import ResourceUse
from perf.records.study import AGAINST, FINAL, NOISE, PROFILE, Prediction, Study, Trial
from perf.records.target_verdict import of_trials
from perf.records.traffic import Traffic
from perf.stats.percentile import percentile_ms
from perf.stats.quantile import Quantile, quantile

COMPARISON = (FINAL, AGAINST, NOISE)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A study sorted for its report; `name` is that of its file without the suffix."""

    study: Study
    name: str

    @classmethod
    def read(cls, path: Path) -> "Evidence":
        """Read a study; raises `RecordError`."""
        return cls(study=Study.read(path), name=path.stem)

    @property
    def open(self) -> bool:
        """Whether the load is an open loop, so that latency depends on the offered rate."""
        return Traffic.of_record(self.study.load).open

    @property
    def unfinished(self) -> bool:
        """Whether the search has no answer yet: no configuration is chosen, and no limit is named."""
        return self.study.chosen is None and not self.study.limit

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All trials except those that only profiled the model."""
        return tuple(trial for trial in self.study.trials if trial.stage != PROFILE)

    @cached_property
    def shown(self) -> Candidate:
        """The chosen candidate; without one, the measured candidate that is closest to what was asked for.

        Those within the limits come first, then those with the lowest percentile. The share of late requests cannot
        decide this: it is 1 for all of them if the target is out of reach.
        """
        if self.study.chosen is not None:
            return self.study.chosen
        return min(
            self.candidates,
            key=lambda each: (bool(self.excess(each)), self._percentile_ms(each), late(self.of(each))),
            default=self.study.default,
        )

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The measured candidates in the order of their first trials."""
        return tuple(dict.fromkeys(trial.candidate for trial in self.trials))

    @cached_property
    def loads(self) -> Mapping[Candidate, str]:
        """The load at which each candidate is judged: the study's load if the candidate was measured under it.

        Else it is the load of its last comparison or trial: with the objective goodput each candidate has its own rate.
        """
        loads: dict[Candidate, str] = {}
        for trial in sorted(self.trials, key=lambda trial: trial.stage in COMPARISON):
            if loads.get(trial.candidate) != self.study.load:
                loads[trial.candidate] = trial.load
        return loads

    def of(self, candidate: Candidate) -> tuple[Trial, ...]:
        """The trials of a candidate at its operating point from which its figures are reported.

        A candidate is chosen because its earlier trials were good, and some of them were so by chance. So these are the
        trials of the last comparison, without those the ones that were made to compare it, and without those all.
        """
        load = self.loads.get(candidate)
        trials = tuple(trial for trial in self.trials if trial.candidate == candidate and trial.load == load)
        last = {id(trial) for trial in (*self.comparison.choice, *self.comparison.current, *self.comparison.again)}
        return (
            tuple(trial for trial in trials if id(trial) in last)
            or tuple(trial for trial in trials if trial.stage in COMPARISON)
            or trials
        )

    @cached_property
    def comparison(self) -> LastComparison:
        """The last comparison of the study, which may be of another candidate than the shown one."""
        return last_comparison(self.study)

    @cached_property
    def decision(self) -> Decision | None:
        """The decision of the study, which `perf.tune` and `perf.compare` print as well; None if it chose nothing."""
        return decision.of_study(self.study)

    @property
    def pairs(self) -> tuple[tuple[Trial, Trial], ...]:
        """Pairs of trials of the shown candidate and the default in the last comparison; empty if it is of another."""
        return self.comparison.pairs if self.comparison.candidate == self.shown else ()

    @property
    def twins(self) -> tuple[tuple[Trial, Trial], ...]:
        """A/A pairs of trials of the default in the last comparison."""
        return self.comparison.twins

    @cached_property
    def predicted(self) -> Mapping[Candidate, Prediction]:
        """The last prediction of each candidate, which has learned most from trials."""
        return {prediction.candidate: prediction for prediction in self.study.predictions}

    def passed(self, trials: Sequence[Trial]) -> bool | None:
        """Whether trials of one configuration together meet the target; None if they cannot tell."""
        return of_trials(trials, self.study.target).passed

    def used(self, candidate: Candidate) -> ResourceUse:
        """The most that the server used in any trial from which a candidate's figures are reported."""
        return ResourceUse.of((trial.used for trial in self.of(candidate)), max)

    def excess(self, candidate: Candidate) -> str:
        """The limit that a candidate exceeded, as in `812.3 MiB of memory (--memory-mib 600)`; empty if none."""
        return self.study.limits.excess(self.used(candidate))

    def role(self, candidate: Candidate) -> str:
        """The role of a candidate: current (also if it was kept), chosen, closest, or empty."""
        if candidate == self.shown and self.study.chosen != self.study.default:
            return "chosen" if self.study.chosen is not None else "closest"
        return "current" if candidate == self.study.default else ""

    def label(self, candidate: Candidate) -> str:
        """The values of a candidate, with its role if it has one."""
        role = self.role(candidate)
        return f"{candidate} ({role})" if role else str(candidate)

    def began_s(self, trial: Trial) -> float | None:
        """Seconds from the start of the study to the start of a trial; None if one of the times is not readable."""
        try:
            study, window = map(datetime.datetime.fromisoformat, (self.study.started_at, trial.started_at))
            return (window - study).total_seconds()
        except (ValueError, TypeError):
            return None

    def _percentile_ms(self, candidate: Candidate) -> float:
        return percentile_ms(pooled(self.of(candidate)), self.study.target.percent)


def late(trials: Iterable[Trial]) -> float:
    """The share of late requests, 0 to 1; 1 without requests."""
    trials = tuple(trials)
    requests = sum(trial.requests for trial in trials)
    return sum(trial.late for trial in trials) / requests if requests else 1.0


def pooled(trials: Iterable[Trial]) -> tuple[float, ...]:
    """All latencies of several trials, in microseconds and in order of time."""
    return tuple(us for trial in trials for us in trial.latencies_us)


def thinned(trials: Iterable[Trial]) -> bool:
    """Whether the record has percentiles of the latencies of a trial in place of its requests."""
    return any(trial.thinned for trial in trials)


def quantile_of(trials: Iterable[Trial], percent: float) -> Quantile:
    """A percentile of the latency of several trials, in milliseconds.

    Percentiles in place of requests are no sample of these: they give a value, but no interval and no design effect.
    """
    trials = tuple(trials)
    if not thinned(trials):
        return quantile(pooled(trials), percent)
    return Quantile(
        percent=percent,
        n=sum(trial.requests for trial in trials),
        value_ms=percentile_ms(pooled(trials), percent),
        low_ms=0.0,
        high_ms=math.inf,
        design_effect=math.nan,
    )


def word(passed: bool | None) -> str:
    """The verdict on the latency target in words."""
    return {True: "pass", False: "fail", None: "cannot tell"}[passed]
