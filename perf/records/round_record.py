"""The record of one trial in one round of perf.compare.versus."""

import glob
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.records.study import NOISE, Trial
from perf.stats.latency_target import LatencyTarget
from triton_batching.machine import Machine


@dataclass(frozen=True, kw_only=True)
class TrialKey:
    """What a trial is of: its record is reused only if all of this is equal.

    `name` is the name of the configuration and `config` its text. `model_sha256` is the digest of the model file, empty
    if there is none, `load_sha256` that of the file that the load names, empty if it names none. `seconds` is the
    planned duration. `compared` is the digest of A and B, with whose trials this one was measured in turn.
    """

    model: str
    name: str
    config: str
    model_sha256: str
    load: str
    rows: int
    sla: LatencyTarget
    seconds: float
    stage: str
    round: int
    machine: Machine
    versions: dict[str, str]
    load_sha256: str
    compared: str

    @property
    def side(self) -> str:
        """The name under which the trial is compared: that of its configuration, or `noise`."""
        return NOISE if self.stage == NOISE else self.name

    def path(self, folder: Path) -> Path:
        """The path of the record. Its name is model, side, digest of the key as JSON, and round."""
        return folder / f"{self.model}.{self.side}.{file.digest(vars(self))}.r{self.round}.json"


@dataclass(frozen=True, kw_only=True)
class KeyedTrial:
    """The content of a record: the key, the trial, and the seed of the order within the rounds."""

    KIND: ClassVar[str] = "round"
    FORMAT: ClassVar[int] = 1

    slot: TrialKey
    trial: Trial
    order_seed: int


def write(slot: TrialKey, trial: Trial, folder: Path, *, order_seed: int = 0) -> Path:
    """Write a record and return its path; raises `RecordError`."""
    return file.write(KeyedTrial(slot=slot, trial=trial, order_seed=order_seed), slot.path(folder))


def read(path: Path) -> tuple[TrialKey, Trial]:
    """Key and trial of a record; raises `RecordError`."""
    record = file.read(path, KeyedTrial)
    return record.slot, record.trial


def machine(slot: TrialKey, folder: Path) -> Machine:
    """The machine of `slot` as its rounds in the folder have it, or as it is if there are none.

    Every byte of the memory is in a record's name, and a machine has some more or less after each start.
    """
    if slot.path(folder).exists():
        return slot.machine
    known = []
    for path in sorted(folder.glob(f"{glob.escape(f'{slot.model}.{slot.side}')}.*.r*.json")):
        with suppress(file.RecordError):
            key, _ = read(path)
            known += [key.machine] if replace(key, round=slot.round) == slot else []
    return min(known, key=lambda each: abs(each.memory_bytes - slot.machine.memory_bytes), default=slot.machine)
