"""The record of one trial in one round: what was asked for, which is its name, and what was measured; one JSON file."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.records.study import NOISE, Trial
from perf.stats.sla import Sla
from triton_batching.machine import Machine


@dataclass(frozen=True, kw_only=True)
class TrialKey:
    """A place for a trial: everything that must be equal for a record to stand for it.

    `name` is the configuration's and `config` its text; `model_sha256` is the digest of the model file, empty where
    there is none; `seconds` is how long the trial is to last. `machine` and `versions` are those of the measurement.
    """

    model: str
    name: str
    config: str
    model_sha256: str
    load: str
    rows: int
    sla: Sla
    seconds: float
    stage: str
    round: int
    machine: Machine
    versions: dict[str, str]

    @property
    def side(self) -> str:
        """What the trial is compared as: its configuration, or the noise floor."""
        return NOISE if self.stage == NOISE else self.name

    def path(self, folder: Path) -> Path:
        """A name that a person can read, with a digest of the rest; another question has another name."""
        # `Slot` is what the class was called when the first records got their names.
        digest = hashlib.sha256(repr(self).replace("TrialKey(", "Slot(", 1).encode()).hexdigest()[:8]
        return folder / f"{self.model}.{self.side}.{digest}.r{self.round}.json"


@dataclass(frozen=True, kw_only=True)
class KeyedTrial:
    """The file of a slot: what was asked for, and what was measured."""

    KIND: ClassVar[str] = "round"
    FORMAT: ClassVar[int] = 1

    slot: TrialKey
    trial: Trial


def write(slot: TrialKey, trial: Trial, folder: Path) -> Path:
    """Write one file, whole or not at all, and return its path; raises `RecordError`."""
    return file.write(KeyedTrial(slot=slot, trial=trial), slot.path(folder))


def read(path: Path) -> tuple[TrialKey, Trial]:
    """The record of a file; raises `RecordError`."""
    record = file.read(path, KeyedTrial)
    return record.slot, record.trial
