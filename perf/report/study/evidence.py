"""What a study holds for and against a configuration: its trials by candidate and load, paired round by round."""

import datetime
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perf.measure.service_profile import ServiceTimes, load
from perf.records.candidate import Candidate
from perf.records.record import RecordError
from perf.records.study import AGAINST, FINAL, NOISE, PROFILE, Prediction, Study, Trial
from perf.records.traffic import Traffic
from perf.stats.quantile import percentile_ms

COMPARISON = (FINAL, AGAINST, NOISE)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A study, sorted for its report; `name` is that of its file without the ending.

    `ramps` are the service-time records that it names, `lost` the names of those that are not there or not readable.
    """

    study: Study
    name: str
    ramps: tuple[ServiceTimes, ...] = ()
    lost: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Evidence":
        """The study of a file, and the service times beside it; raises `RecordError`."""
        study = Study.read(path)
        ramps, lost = [], []
        for name in study.profiles:
            try:
                ramps.append(load(path.parent / name))
            except RecordError:
                lost.append(name)
        return cls(study=study, name=path.stem, ramps=tuple(ramps), lost=tuple(lost))

    @property
    def open(self) -> bool:
        """Whether requests were due at times of their own, so that latency is a function of the offered rate."""
        return Traffic.parse(self.study.load).open

    @property
    def unfinished(self) -> bool:
        """Whether the search did not come to an answer: nothing was chosen, and nothing says what was in the way."""
        return self.study.chosen is None and not self.study.limit

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All measurements but those that only profiled the model."""
        return tuple(trial for trial in self.study.trials if trial.stage != PROFILE)

    @cached_property
    def shown(self) -> Candidate:
        """The chosen candidate; where none was, the measured one whose percentile comes nearest to the target.

        The share of late requests would not do: it is 1 for all of them where the target is out of reach.
        """
        if self.study.chosen is not None:
            return self.study.chosen
        measured = self.candidates
        return min(measured, key=lambda one: (self._far_ms(one), late(self.of(one))), default=self.study.default)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Everything that was measured, in the order of its first measurement."""
        return tuple(dict.fromkeys(trial.candidate for trial in self.trials))

    @cached_property
    def loads(self) -> Mapping[Candidate, str]:
        """The load at which a candidate is judged: the study's where it was measured under it.

        Else (with the objective goodput each has a rate of its own) that of its last comparison or measurement.
        """
        found: dict[Candidate, str] = {}
        for trial in sorted(self.trials, key=lambda one: one.stage in COMPARISON):
            if found.get(trial.candidate) != self.study.load:
                found[trial.candidate] = trial.load
        return found

    def of(self, candidate: Candidate) -> tuple[Trial, ...]:
        """The measurements of a candidate at its operating point."""
        load = self.loads.get(candidate)
        return tuple(one for one in self.trials if one.candidate == candidate and one.load == load)

    @cached_property
    def pairs(self) -> tuple[tuple[Trial, Trial], ...]:
        """The shown candidate and the default, measured next to each other in the last comparison."""
        if self.shown == self.study.default:
            return ()
        return tuple(zip(self._compared(self.shown), self._compared(self.study.default), strict=False))

    @cached_property
    def twins(self) -> tuple[tuple[Trial, Trial], ...]:
        """One configuration measured twice in the last comparison: what differs between them is noise."""
        order = dict.fromkeys((self.study.default, self.shown))
        return tuple(pair for one in order for pair in itertools.pairwise(self._compared(one)))

    @cached_property
    def predicted(self) -> Mapping[Candidate, Prediction]:
        """What was simulated, by candidate; of two predictions the later one, which had learned from measurements."""
        return {one.candidate: one for one in self.study.predictions}

    def role(self, candidate: Candidate) -> str:
        """What a candidate is to the study."""
        if candidate == self.shown:
            return "chosen" if self.study.chosen is not None else "closest"
        return "current" if candidate == self.study.default else ""

    def label(self, candidate: Candidate) -> str:
        """A candidate by its values, and by its role where it has one."""
        role = self.role(candidate)
        return f"{candidate} ({role})" if role else str(candidate)

    def began_s(self, trial: Trial) -> float | None:
        """Seconds from the start of the study to that of a trial; None where one of the two is no time."""
        try:
            study, window = map(datetime.datetime.fromisoformat, (self.study.started_at, trial.started_at))
            return (window - study).total_seconds()
        except (ValueError, TypeError):
            return None

    def _far_ms(self, candidate: Candidate) -> float:
        return percentile_ms(pooled(self.of(candidate)), self.study.sla.percent)

    def _compared(self, candidate: Candidate) -> tuple[Trial, ...]:
        return tuple(one for one in self.of(candidate) if one.stage in COMPARISON)


def late(trials: Iterable[Trial]) -> float:
    """Share of all requests that were late; 1 where there is none."""
    trials = tuple(trials)
    requests = sum(trial.requests for trial in trials)
    return sum(trial.late for trial in trials) / requests if requests else 1.0


def pooled(trials: Iterable[Trial]) -> tuple[float, ...]:
    """The latencies of several windows together, microseconds."""
    return tuple(us for trial in trials for us in trial.latencies_us)


def rows_per_s(trials: Iterable[Trial]) -> float:
    """The rows of several windows over their time together, which `perf.tune` prints too; 0 where there is none."""
    trials = tuple(trials)
    seconds = sum(trial.seconds for trial in trials)
    return sum(trial.throughput_rows_per_s * trial.seconds for trial in trials) / seconds if seconds else 0.0


def word(passed: bool | None) -> str:
    """The verdict on the latency target."""
    return {True: "pass", False: "fail", None: "cannot tell"}[passed]
