"""The study under way: each trial is on disk before the next begins, so a stopped study resumes; and its budget.

The search depends only on what was measured. The same command therefore asks for the same trials in the same order:
those on record are read, and the first that is missing is measured. The sides of a round of the last comparison are
compared with each other, so they are read only if both are on record, from the same turn.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from perf.records.candidate import Candidate
from perf.records.file import RecordError
from perf.records.last_comparison import LOOKS
from perf.records.study import AGAINST, FINAL, NOISE, PROFILE, Step, Study, Trial, phase
from perf.records.traffic import Traffic

WARM_UP_S = 0.5
# Trials of a study that differs in one of these fields cannot be used.
IDENTITY = ("model", "config_name", "load", "sla", "objective", "machine", "versions", "before_pbtxt", "model_sha256")
# Rounds of the last comparison. Each has one short trial of the choice and one of the default, and counts as one point.
# Six short rounds have an interval half as wide as three of twice the length, and cost as much load (Student's t).
ROUNDS = LOOKS.at[0]
FINAL_POINTS = ROUNDS
COMPARED = (FINAL, AGAINST, NOISE)
# While no configuration met the target, so few rounds are kept back to confirm one that does.
LEAST_FINAL_POINTS = 2
# The two best are measured once more, for longer, before the last comparison.
SURVIVORS = 2
# These trials last this many times as long as the others.
LONGER = 2


class Bench(Protocol):
    """Measures a configuration under a load."""

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        """Measure one trial of `seconds` after a short warm-up."""

    def prepare(self, candidate: Candidate) -> None:
        """Start the candidate's server, if there is none, and return at once."""

    def retire(self, candidate: Candidate) -> None:
        """Stop the candidate's server, which is needed no more."""


class StudyLog:
    """A study on disk at `path`, and the bench that measures its missing trials.

    Trials on record in which the use of a limited resource is not known are measured again, and kept until then.
    """

    def __init__(
        self,
        study: Study,
        path: Path,
        bench: Bench,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path, self.bench, self._progress = path, bench, progress
        resumed = _stored(study, path)
        self._recorded = [] if resumed is None else list(resumed.trials)
        self.study = study if resumed is None else _resumed(resumed, study)
        self._old_steps = list(resumed.steps) if resumed is not None else []
        self._before_s = self._old_steps[-1].at_s if self._old_steps else 0.0
        self._began = time.monotonic()
        self.measured_now = 0

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        """Return a trial from the record, or a new one, which is then on record."""
        key = _wanted(candidate, traffic, stage, round, seconds)
        recorded = self._find(key)
        if recorded is not None:
            self.change(trials=(*self.study.trials, recorded), write=False)
            return recorded
        self._progress(f"measuring {candidate} ({phase(stage, round)})")
        trial = self.bench.measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        self.measured_now += 1
        self.change(trials=(*self.study.trials, trial))
        return trial

    def prepare(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> None:
        """Start the server of a trial that is not on record."""
        if self._find(_wanted(candidate, traffic, stage, round, seconds)) is None:
            self.bench.prepare(candidate)

    def discard_part(
        self, sides: Iterable[tuple[Candidate, str]], traffic: Traffic, *, round: int, seconds: float
    ) -> None:
        """Discard what is on record of a round of the last comparison, unless all of its `sides` are.

        So the record never holds sides of one round from two turns, between which the machine may have changed. The
        trials of an earlier choice in that round are discarded, too.
        """
        wanted = [_wanted(candidate, traffic, stage, round, seconds) for candidate, stage in sides]
        if any(self._find(key) is None for key in wanted):
            self._recorded = [trial for trial in self._recorded if trial.round != round or trial.stage not in COMPARED]

    def _find(self, key: tuple[object, ...]) -> Trial | None:
        """The trial on record of which the use of all limited resources is known."""
        known = (trial for trial in self._recorded if not self.study.limits.unread(trial.used))
        return next((trial for trial in known if _key(trial) == key), None)

    def retire(self, candidates: Iterable[Candidate]) -> None:
        """Stop the servers of candidates that are needed no more."""
        for candidate in candidates:
            self.bench.retire(candidate)

    def add_step(self, text: str) -> None:
        """Add a line to the study's search log; a resumed study keeps the times of its old lines.

        It is on disk with the next trial: a line is no reason to write thousands of latencies again.
        """
        number = len(self.study.steps)
        step = self._old_steps[number] if number < len(self._old_steps) else None
        if step is None or step.text != text:
            self._old_steps = self._old_steps[:number]
            step = Step(at_s=round(self._before_s + time.monotonic() - self._began, 1), text=text)
        self._progress(text)
        self.change(steps=(*self.study.steps, step), write=False)

    def change(self, *, write: bool = True, **changes: object) -> None:
        """Set fields of the study. On disk, trials of the last run that were not yet asked for again remain."""
        self.study = replace(self.study, **changes)  # type: ignore[arg-type]
        if write:
            present = {_key(trial) for trial in self.study.trials}
            waiting = tuple(trial for trial in self._recorded if _key(trial) not in present)
            replace(self.study, trials=(*self.study.trials, *waiting)).write(self.path)

    def finish(self) -> Study:
        """Write and return the study, without old trials that were not asked for again."""
        self.study.write(self.path)
        return self.study

    @property
    def points(self) -> int:
        """Points so far, without profiles."""
        return points_of(self.study.trials)

    @property
    def live_s(self) -> float:
        """Seconds of load in those trials, warm-ups included."""
        return sum(trial.seconds + WARM_UP_S for trial in self.study.trials if trial.stage != PROFILE)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """At most `points` measurements and `seconds` of load, of which the profile took `profile_points` and `profile_s`.

    A first trial lasts `short_s`: as long as the seconds allow if all points are used, within `LIMITS_S`. The last
    comparison may have so many `rounds`, whatever they cost; None: `ROUNDS` of them, as far as points and seconds go.
    """

    points: int = 13
    seconds: float = 90.0
    profile_points: int = 0
    profile_s: float = 0.0
    rounds: int | None = None

    LIMITS_S = (1.5, 5.0)

    @property
    def short_s(self) -> float:
        """Seconds of a first trial."""
        trials = self.points - self.profile_points
        warm_ups_s = (trials + FINAL_POINTS) * WARM_UP_S
        units = trials + FINAL_POINTS + (LONGER - 1) * SURVIVORS
        unit = (self.seconds - self.profile_s - warm_ups_s) / max(1, units)
        return round(min(max(unit, self.LIMITS_S[0]), self.LIMITS_S[1]) - 0.05, 1)

    @property
    def long_s(self) -> float:
        """Seconds of a trial of the best."""
        return LONGER * self.short_s

    @property
    def round_s(self) -> float:
        """Seconds of a round of the last comparison, without its first warm-up."""
        return 2 * self.short_s + WARM_UP_S

    @property
    def most_rounds(self) -> int:
        """The most rounds of the last comparison."""
        return ROUNDS if self.rounds is None else self.rounds

    @property
    def enough(self) -> bool:
        """Whether it pays for trials of the current configuration and one other, and for their comparison."""
        trials = FINAL_POINTS + 2
        load = 2 * self.short_s + FINAL_POINTS * self.round_s + trials * WARM_UP_S
        return trials <= self.points - self.profile_points and load <= self.seconds - self.profile_s

    def affords(self, log: StudyLog, points: int, seconds: float, *, reserve: int = FINAL_POINTS) -> bool:
        """Return whether `points` more trials of `seconds` leave enough for `reserve` rounds."""
        left_points = self.points - self.profile_points - log.points - reserve
        left_s = self.seconds - self.profile_s - log.live_s - reserve * (self.round_s + WARM_UP_S)
        # A window ends when its counters are read, some milliseconds late.
        return points <= left_points and points * (seconds + WARM_UP_S) <= left_s + 0.5

    def affords_round(self, log: StudyLog) -> bool:
        """Return whether one more round of the last comparison may be measured."""
        return self.rounds is not None or self.affords(log, 1, self.round_s, reserve=0)


def points_of(trials: Iterable[Trial]) -> int:
    """Count the trials of a search, and the rounds of its last comparisons, of which each has a trial of both sides."""
    made = [trial for trial in trials if trial.stage != PROFILE]
    return sum(trial.stage not in COMPARED for trial in made) + len(
        {trial.round for trial in made if trial.stage in COMPARED}
    )


def _key(trial: Trial) -> tuple[object, ...]:
    """What a trial is of; one of another length, after another warm-up or of files with other content is another."""
    same_load = trial.load, trial.load_sha256, trial.warm_up_s
    return trial.candidate, *same_load, trial.stage, trial.round, trial.planned_s


def _wanted(candidate: Candidate, traffic: Traffic, stage: str, round: int, seconds: float) -> tuple[object, ...]:
    """The key of a trial that is to be measured; raises `Mistake` if a file of its load cannot be read."""
    return candidate, str(traffic), traffic.sha256, WARM_UP_S, stage, round, seconds


def _resumed(stored: Study, study: Study) -> Study:
    """The stored study without its trials, as this command searches it."""
    new = {name: getattr(study, name) for name in ("command", "limits", "space", "profiles")}
    return replace(stored, trials=(), steps=(), **new)


def _stored(study: Study, path: Path) -> Study | None:
    """Return the study on disk if it is the same."""
    try:
        stored = Study.read(path)
    except (RecordError, OSError):
        return None
    return stored if all(getattr(stored, name) == getattr(study, name) for name in IDENTITY) else None
