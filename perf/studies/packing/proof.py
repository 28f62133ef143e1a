"""The record of a plan on a real server, at its rates and above: planned, replayed and measured values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from perf.records import file
from perf.stats.latency_target import CONFIDENCE, judge
from triton_batching.machine import Machine

SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model at one load: `late` of its `requests` were answered after `sla_ms`, wrongly or never.

    `late_sends` counts requests that the client sent more than 1 ms late. A percentile is None if it is of requests
    without an answer. `exec_ms` and `batch_rows` are means over executions by the server's counters, `planned_ms` the
    planned time of that many rows, and `replayed_*` the values of the simulation at the same rates. The requests are
    worth `requests` / `design_effect` independent ones; older records have 1.
    """

    model: str
    rate_per_s: float
    sla_ms: float
    requests: int
    late: int
    late_sends: int
    p50_ms: float | None
    p99_ms: float | None
    executions: int
    batch_rows: float
    largest_batch: int
    exec_ms: float
    planned_ms: float
    replayed_late_share: float
    replayed_p99_ms: float
    design_effect: float = 1.0

    @property
    def late_share(self) -> float:
        """The share of late requests."""
        return self.late / self.requests

    @property
    def in_time(self) -> bool | None:
        """Whether 99 % of the requests are in time, with 99 % confidence; None if there are too few to tell."""
        return judge(self.requests, self.late, SHARE, CONFIDENCE, design_effect=self.design_effect)


@dataclass(frozen=True, kw_only=True)
class Round:
    """All models at `scale` times their planned rates for `seconds`."""

    scale: float
    seconds: float
    busy_share: float
    models: tuple[ModelResult, ...]

    @property
    def in_time(self) -> bool | None:
        """True if all models meet their targets, False if one surely misses it, else None."""
        if any(model.in_time is False for model in self.models):
            return False
        return True if all(model.in_time for model in self.models) else None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The rounds on one server and its placement.

    `own_work_ms` (fixed, per row) is the server's own share of each planned execution; the model sleeps for the rest.
    """

    KIND: ClassVar[str] = "proof"
    FORMAT: ClassVar[int] = 1

    plan: str
    arrivals: str
    placement: Mapping[str, Any]
    own_work_ms: tuple[float, float]
    rounds: tuple[Round, ...]
    started_at: str
    command: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]

    def write(self, folder: Path, name: str) -> Path:
        """Write the record."""
        return file.write(self, folder / name)

    @classmethod
    def read(cls, path: Path) -> "Proof":
        """Read a record; raises `RecordError`."""
        return file.read(path, cls, remedy="Run python -m perf.studies.packing.prove again.")
