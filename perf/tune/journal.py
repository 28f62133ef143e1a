"""The study while it is made: every step is on disk before the next begins, and a study that was stopped goes on.

The search is a function of what was measured, so the same command asks for the same trials in the same order: those
that are in the record are answered from it, and the first that is not is measured.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from perf.records.candidate import Candidate
from perf.records.file import RecordError
from perf.records.study import PROFILE, Step, Study, Trial
from perf.records.traffic import Traffic

WARM_UP_S = 0.5
# Everything that makes another study of it: with one of these different, nothing that was measured can stand.
IDENTITY = ("model", "config_name", "load", "sla", "objective", "machine", "versions", "before_pbtxt", "model_sha256")


class Bench(Protocol):
    """Where a configuration is measured under a load."""

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        """One trial of `seconds` after a short warm-up."""

    def retire(self, candidate: Candidate) -> None:
        """It will not be measured any more: its server can go."""


class Journal:
    """A study on disk at `path`, and the bench for what is not yet in it."""

    def __init__(self, study: Study, path: Path, bench: Bench, told: Callable[[str], None] = lambda _: None) -> None:
        self.path, self.bench, self._told = path, bench, told
        self.resumed = _stored(study, path)
        self.study = study if self.resumed is None else replace(self.resumed, command=study.command)
        self._known = list(self.study.trials)
        self.study = replace(self.study, trials=(), steps=())
        self._old_steps = list(self.resumed.steps) if self.resumed is not None else []
        self._before_s = self._old_steps[-1].at_s if self._old_steps else 0.0
        self._began = time.monotonic()
        self.measured_now = 0

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        """A trial from the record, or a new one that is in the record when this returns."""
        for known in self._known:
            if (known.candidate, known.load, known.stage, known.round) == (candidate, str(traffic), stage, round):
                self.change(trials=(*self.study.trials, known), write=False)
                return known
        self._told(f"{stage}, round {round}: {candidate}")
        trial = self.bench.measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        self.measured_now += 1
        self.change(trials=(*self.study.trials, trial))
        return trial

    def retire(self, candidates: Iterable[Candidate]) -> None:
        """These will not be measured any more."""
        for candidate in candidates:
            self.bench.retire(candidate)

    def say(self, text: str) -> None:
        """One more line of the search log."""
        number = len(self.study.steps)
        old = self._old_steps[number] if number < len(self._old_steps) else None
        if old is None or old.text != text:
            self._old_steps = self._old_steps[:number]
            old = Step(at_s=round(self._before_s + time.monotonic() - self._began, 1), text=text)
        self._told(text)
        self.change(steps=(*self.study.steps, old))

    def change(self, *, write: bool = True, **changes: object) -> None:
        """Set fields of the study. On disk it keeps the trials of the last run that were not yet asked for again."""
        self.study = replace(self.study, **changes)  # type: ignore[arg-type]
        if write:
            here = {_key(one) for one in self.study.trials}
            waiting = tuple(one for one in self._known if _key(one) not in here)
            replace(self.study, trials=(*self.study.trials, *waiting)).write(self.path)

    def finish(self) -> Study:
        """The whole study, on disk without anything that was not asked for."""
        self.study.write(self.path)
        return self.study

    @property
    def points(self) -> int:
        """Trials so far, profiles not counted."""
        return sum(one.stage != PROFILE for one in self.study.trials)

    @property
    def live_s(self) -> float:
        """Seconds of live load in those trials, warm-up included."""
        return sum(one.seconds + WARM_UP_S for one in self.study.trials if one.stage != PROFILE)


def _key(trial: Trial) -> tuple[object, ...]:
    return trial.candidate, trial.load, trial.stage, trial.round


def _stored(study: Study, path: Path) -> Study | None:
    """What is on disk, where it is the same study."""
    try:
        found = Study.read(path)
    except RecordError:
        return None
    return found if all(getattr(found, name) == getattr(study, name) for name in IDENTITY) else None
