"""What two models on one device do to each other, measured: the record, and the factors that the packer takes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perf.pack.workload import Pair
from perf.records.record import RecordError, write_json
from triton_batching.machine import Machine

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Busy:
    """One model under a closed loop: rows per second, and its executions by size: how many, and their mean ms."""

    rows_per_s: float
    executions: Mapping[int, int]
    mean_ms: Mapping[int, float]

    @property
    def batch_rows(self) -> float:
        """Mean rows of an execution."""
        return sum(rows * count for rows, count in self.executions.items()) / sum(self.executions.values())

    @property
    def exec_ms(self) -> float:
        """Mean time of an execution."""
        return self.taking(self) / sum(self.executions.values())

    def taking(self, times: "Busy") -> float:
        """Milliseconds that these executions take with the mean times of `times`, between its sizes on a line."""
        sizes = sorted(times.mean_ms)
        known = [times.mean_ms[size] for size in sizes]
        return sum(count * float(np.interp(rows, sizes, known)) for rows, count in self.executions.items())


@dataclass(frozen=True, kw_only=True)
class Interference:
    """Two models, each alone and then at the same time, `seconds` each, with `clients` in a closed loop per model."""

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
        """What executions take beside the other model, over what as many of the same sizes take alone.

        Below 1 is noise, and counted as 1.
        """
        first, second = (
            max(1.0, both.taking(both) / both.taking(alone))
            for alone, both in zip(self.alone, self.together, strict=True)
        )
        return first, second

    @property
    def gain(self) -> float:
        """Throughput of both at the same time over that of the two one after the other, which is 1.

        Taking turns, a device that gives one model a share of its time gives the other the rest, so the shares of what
        each has alone add up to 1; here they are added up as measured (weighted speedup).
        """
        return sum(pair[1].rows_per_s / pair[0].rows_per_s for pair in zip(self.alone, self.together, strict=True))

    @property
    def file_name(self) -> str:
        """A name that a person can read."""
        return f"interference.{'.'.join(self.models)}.json"

    def write(self, folder: Path) -> Path:
        """The record, whole or not at all."""
        derived = {"factors": self.factors, "gain": self.gain}
        return write_json(
            self.file_name, {"format": FORMAT, "kind": "interference", **asdict(self), "derived": derived}, folder
        )

    @classmethod
    def read(cls, path: Path) -> "Interference":
        """A written one; raises `RecordError`."""
        try:
            content = json.loads(path.read_text())
            if (content.pop("format"), content.pop("kind")) != (FORMAT, "interference"):
                raise ValueError("another kind or format")
            del content["derived"]
            first, second = (tuple(_busy(one) for one in content[name]) for name in ("alone", "together"))
            return cls(
                **content
                | {
                    "models": tuple(content["models"]),
                    "alone": first,
                    "together": second,
                    "command": tuple(content["command"]),
                    "machine": Machine(**content["machine"]),
                }
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}: not a record of interference ({error}). Measure it again.") from error


def _busy(content: Mapping[str, Any]) -> Busy:
    executions, times = ({int(rows): one for rows, one in content[name].items()} for name in ("executions", "mean_ms"))
    return Busy(rows_per_s=content["rows_per_s"], executions=executions, mean_ms=times)


def read(path: Path) -> Pair:
    """The factors of a record; raises `RecordError`."""
    found = Interference.read(path)
    return Pair(models=found.models, factors=found.factors)
