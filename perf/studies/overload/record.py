"""The record of an overload trial: its settings, the counts of each phase, and whether the gates passed."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from rich.table import Table

from perf.load.timings import FAILED, NOT_SENT, RIGHT, WRONG, Timings
from perf.records import file
from perf.stats.percentile import percentile
from perf.studies.experiment import Origin
from perf.studies.tables import plain_table

# The settings of a trial.
QUESTION = (
    "model",
    "config_name",
    "bound",
    "time_scale",
    "target_ms",
    "times",
    "seconds",
    "give_up_ms",
    "config",
    "machine",
)
GOODPUT, REFUSED_MS, RECOVERY_S = 0.9, 1000.0, 5.0
GROWTH, GROWTH_MB = 0.05, 5.0
SETTLED_S = 30.0
LATE_NS = 1_000_000
TITLES = (
    "model",
    "limit",
    "overload",
    "p99 at half load",
    "clients give up",
    "in time / capacity",
    "p99 answered",
    "refused",
    "refused, p99",
    "memory, 30 s and end",
    "recovery",
)
# Bounds of a queue: the configuration's own, and none.
OWN, NONE = "own", "none"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The requests that were due in one phase: counts, and quantiles in ms from when they were due.

    `in_time` requests were answered within the target, `refused` ones ended in an error of the server, and `gave_up`
    ones in the client's deadline. `not_sent` ones met the limit of requests in flight, and `lost` ones never ended.
    """

    seconds: float
    due: int
    right: int
    wrong: int
    in_time: int
    refused: int
    gave_up: int
    not_sent: int
    late_sends: int
    p50_ms: float
    p99_ms: float
    refused_p50_ms: float
    refused_p99_ms: float
    refused_max_ms: float

    @classmethod
    def of(cls, timings: Timings, *, due: int, seconds: float, target_ms: float, timeout_s: float) -> Self:
        """The phase of the requests in `timings`, of which `due` should exist."""
        ms = (timings["done"] - timings["due"]) / 1e6
        ended, waited_s = timings["outcome"], (timings["done"] - timings["called"]) / 1e9
        gave_up = (ended == FAILED) & (waited_s >= 0.98 * timeout_s)
        refused, right = (ended == FAILED) & ~gave_up, ended == RIGHT
        return cls(
            seconds=seconds,
            due=due,
            right=int(np.sum(right)),
            wrong=int(np.sum(ended == WRONG)),
            in_time=int(np.sum(ms[right] <= target_ms)),
            refused=int(np.sum(refused)),
            gave_up=int(np.sum(gave_up)),
            not_sent=int(np.sum(ended == NOT_SENT)),
            late_sends=int(np.sum((ended != NOT_SENT) & (timings["called"] - timings["due"] > LATE_NS))),
            p50_ms=_quantile(ms[right], 50),
            p99_ms=_quantile(ms[right], 99),
            refused_p50_ms=_quantile(ms[refused], 50),
            refused_p99_ms=_quantile(ms[refused], 99),
            refused_max_ms=_quantile(ms[refused], 100),
        )

    @property
    def lost(self) -> int:
        """Requests that were due and never ended."""
        return self.due - self.right - self.wrong - self.refused - self.gave_up - self.not_sent

    @property
    def in_time_per_s(self) -> float:
        """Answered within the target, per second."""
        return self.in_time / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class OverloadRecord(Origin):
    """One trial. `capacity_per_s` is that of the same configuration without a bound, in a closed loop just before.

    `before` and `after` have half of that rate, `during` has `times` x it. `memory_mb` is the memory of the server and
    its Python processes in each second of the overload. `recovery_s` is the time from the end of the overload until 20
    requests in a row are answered in time, None for never.
    """

    KIND: ClassVar[str] = "overload"
    FORMAT: ClassVar[int] = 1
    model: str
    config_name: str | None
    bound: str
    time_scale: float
    target_ms: float
    times: float
    seconds: float
    give_up_ms: float | None
    config: str
    capacity_per_s: float
    before: Phase
    during: Phase
    after: Phase
    errors: Mapping[str, int]
    memory_mb: tuple[float, ...]
    recovery_s: float | None
    cores_busy: float
    partial: bool

    @property
    def share(self) -> float:
        """The rate of answers in time over the capacity."""
        return self.during.in_time_per_s / self.capacity_per_s

    @property
    def settled_mb(self) -> tuple[float, float]:
        """Memory after 30 s of the overload, or a third of a shorter one, and at its end."""
        if not self.memory_mb:
            return 0.0, 0.0
        place = min(int(SETTLED_S), len(self.memory_mb) // 3)
        return self.memory_mb[place], float(np.median(self.memory_mb[-3:]))

    @property
    def gates(self) -> dict[str, bool]:
        """The gates of an overload, each with whether it passed."""
        first, last = self.settled_mb
        return {
            f"answered in time >= {GOODPUT} of the capacity": self.share >= GOODPUT,
            f"p99 of the answered <= {self.target_ms:g} ms": self.during.p99_ms <= self.target_ms,
            "memory flat": last - first <= max(GROWTH * first, GROWTH_MB),
            "refused in < 1 s": self.during.refused == 0 or self.during.refused_p99_ms < REFUSED_MS,
            "every answer right, every request ended": not (self.during.wrong or self.during.lost),
            "errors typed": set(self.errors) <= {"RejectedError", "TimedOutError"},
            "recovered in <= 5 s": self.recovery_s is not None and self.recovery_s <= RECOVERY_S,
        }

    @property
    def file_name(self) -> str:
        """The name of the record, with a digest of the settings."""
        digest = hashlib.sha256(repr([(name, asdict(self)[name]) for name in QUESTION]).encode()).hexdigest()[:6]
        variant = self.config_name or "config"
        give_up = f".give_up_{self.give_up_ms:g}" if self.give_up_ms else ""
        bound = self.bound.replace(":", "_")
        return f"{self.model}.{variant}.{bound}.x{self.times:g}.{self.seconds:g}s{give_up}.{digest}.json"

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / self.file_name)


def read(folder: Path) -> Iterator[OverloadRecord]:
    """All records of a folder, by file name; raises `RecordError`."""
    return map(load, sorted(folder.glob("*.json")))


def load(path: Path) -> OverloadRecord:
    """One record; raises `RecordError`."""
    return file.read(path, OverloadRecord)


def _quantile(values: Any, percent: float) -> float:
    return round(float(percentile(values, percent)), 3) if len(values) else 0.0


def cells(record: OverloadRecord) -> tuple[str, ...]:
    """The cells of a row."""
    first, last = record.settled_mb
    refused = record.during.refused
    return (
        f"{record.model} {record.config_name or ''}".strip(),
        record.bound if record.bound != OWN else "as shipped",
        f"x {record.times:g}, {record.seconds:g} s",
        f"{record.before.p99_ms:.0f} ms",
        f"after {record.give_up_ms / 1e3:g} s ({record.during.gave_up})" if record.give_up_ms else "no",
        f"{record.during.in_time_per_s:.1f} / {record.capacity_per_s:.1f} = {record.share:.2f}",
        f"{record.during.p99_ms:.0f} ms" if record.during.right else "none",
        f"{refused / record.during.due:.0%}" if record.during.due else "",
        f"{record.during.refused_p99_ms:.0f} ms" if refused else "",
        f"{first:.0f}, {last:.0f} MB",
        "never" if record.recovery_s is None else f"{record.recovery_s:.1f} s",
    )


def table(records: Sequence[OverloadRecord]) -> Table:
    """The table for a terminal."""
    rows = plain_table(TITLES, left=3)
    for record in records:
        rows.add_row(*cells(record))
    return rows


def ordered(records: Sequence[OverloadRecord]) -> list[OverloadRecord]:
    """Sort by length, longest first, then by the clients' patience and by the bound, the shipped one first."""
    return sorted(
        records,
        key=lambda record: (-record.seconds, record.model, record.give_up_ms or 0, record.bound != OWN, record.bound),
    )
