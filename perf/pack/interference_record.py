"""The record of two models on one device: how much each slows the other down."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from perf.pack.workload import Pair
from perf.records import file
from triton_batching.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Busy:
    """One model under a closed loop: its rows per second, and by batch size its executions and their mean time."""

    rows_per_s: float
    executions: Mapping[int, int]
    mean_ms: Mapping[int, float]

    @property
    def batch_rows(self) -> float:
        """The mean rows per execution."""
        return sum(rows * count for rows, count in self.executions.items()) / sum(self.executions.values())

    @property
    def exec_ms(self) -> float:
        """The mean time of an execution in milliseconds."""
        return self.taking(self) / sum(self.executions.values())

    def taking(self, times: "Busy") -> float:
        """Milliseconds of these executions with the mean times of `times`, interpolated between its batch sizes."""
        sizes = sorted(times.mean_ms)
        means = [times.mean_ms[size] for size in sizes]
        return sum(count * float(np.interp(rows, sizes, means)) for rows, count in self.executions.items())


@dataclass(frozen=True, kw_only=True)
class Interference:
    """Two models, each alone and then both together, for `seconds` each, with `clients` per model in a closed loop."""

    KIND: ClassVar[str] = "interference"
    FORMAT: ClassVar[int] = 1

    models: tuple[str, str]
    config_name: str
    clients: int
    seconds: float
    alone: tuple[Busy, Busy]
    together: tuple[Busy, Busy]
    started_at: str
    command: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]

    @property
    def factors(self) -> tuple[float, float]:
        """For each model the time of its executions beside the other model, over the time of the same executions alone.

        A factor below 1 is noise and counts as 1.
        """
        first, second = (
            max(1.0, both.taking(both) / both.taking(alone))
            for alone, both in zip(self.alone, self.together, strict=True)
        )
        return first, second

    @property
    def gain(self) -> float:
        """The weighted speedup: the sum of each model's throughput together over its throughput alone.

        If the models take turns, their shares of the device's time add up to 1.
        """
        pairs = zip(self.alone, self.together, strict=True)
        return sum(together.rows_per_s / alone.rows_per_s for alone, together in pairs)

    @property
    def file_name(self) -> str:
        """The name of the record's file."""
        return f"interference.{'.'.join(self.models)}.json"

    def write(self, folder: Path) -> Path:
        """Write the record, with the factors and the gain for human readers."""
        return file.write(self, folder / self.file_name, factors=self.factors, gain=self.gain)

    @classmethod
    def read(cls, path: Path) -> "Interference":
        """Read a record; raises `RecordError`."""
        return file.read(path, cls, remedy="Measure again: python -m perf.pack.interference.")


def read(path: Path) -> Pair:
    """The factors of a record as a pair of a plan; raises `RecordError`."""
    record = Interference.read(path)
    return Pair(models=record.models, factors=record.factors)
