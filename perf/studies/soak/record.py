"""The record of a soak, one JSON file: how calls ended, what grew and all problems; the rule of growth, and the tables.

The first third of a run is warm-up and does not count. The growth over the rest (the window) is the median of its last
tenth less that of its first tenth. A series grows if that is more than 5 % of the first + 4 MiB, or + 3 for counts. In
a window below two minutes nothing grows: clients still open connections and start threads then.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.table import Table

from perf.records import file
from perf.studies.experiment import Origin
from perf.studies.soak.call import CallOutcome
from perf.studies.tables import plain_table

ALLOWED_SHARE, ALLOWED_BYTES, ALLOWED_COUNT = 0.05, 4 << 20, 3.0
BYTES = "bytes"
LEAST_WINDOW_S = 120.0
# Failed calls and series that are printed; the record has more.
SHOWN_FAILED, SHOWN_SERIES = 5, 8


@dataclass(frozen=True, kw_only=True)
class User:
    """One client process: its job, and the number of its calls by outcome."""

    name: str
    models: tuple[str, ...]
    callers: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Served:
    """The server's counters of one model; rows per execution show whether batches formed."""

    rows: int
    executions: int


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One series over the window of `window_s`, in `unit`: its first and last medians, its growth and the limit."""

    series: str
    unit: str
    window_s: float
    first: float
    last: float
    growth: float
    allowed: float

    @classmethod
    def judge(cls, series: str, unit: str, times: Sequence[float], values: Sequence[float]) -> "Growth":
        """The growth of the readings of the window at `times`; at least one."""
        tenth = max(1, len(values) // 10)
        first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
        return cls(
            series=series,
            unit=unit,
            window_s=round(times[-1] - times[0], 1),
            first=first,
            last=last,
            growth=last - first,
            allowed=ALLOWED_SHARE * first + (ALLOWED_BYTES if unit == BYTES else ALLOWED_COUNT),
        )

    @property
    def grows(self) -> bool:
        """Whether the growth is above the limit, in a window that is long enough."""
        return self.window_s >= LEAST_WINDOW_S and self.growth > self.allowed

    def text(self, value: float) -> str:
        """An amount in the unit."""
        return f"{value / 2**20:,.1f} MiB" if self.unit == BYTES else f"{value:,.1f}"


@dataclass(frozen=True, kw_only=True)
class SoakRecord(Origin):
    """A run of `seconds` that was planned for `minutes`.

    `failed` has the first of `failures` in words; `faults` are of processes and of files that were left behind.
    """

    KIND: ClassVar[str] = "soak"
    FORMAT: ClassVar[int] = 1
    minutes: float
    seconds: float
    interrupted: bool
    seed: int
    server_version: str
    users: tuple[User, ...]
    served: Mapping[str, Served]
    failures: int
    failed: tuple[str, ...]
    faults: tuple[str, ...]
    growths: tuple[Growth, ...]
    rule: str = __doc__

    @property
    def calls(self) -> int:
        """The number of calls that ended."""
        return sum(sum(user.outcomes.values()) for user in self.users)

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems, a line each."""
        calls = [f"{self.failures} calls or clients failed; the first of them:"] if self.failures else []
        calls += [f"  seed {self.seed}, {failure}" for failure in self.failed[:SHOWN_FAILED]]
        grown = [
            f"{series.series} grows: {series.text(series.growth)} in {series.window_s:.0f} s, "
            f"the limit is {series.text(series.allowed)}"
            for series in self.growths
            if series.grows
        ]
        return (*self.faults, *calls, *grown)

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / f"soak.{self.minutes:g}min.s{self.seed}.json")


def load(path: Path) -> SoakRecord:
    """The record of a file; raises `RecordError`."""
    return file.read(path, SoakRecord, remedy="Run the soak again.")


def ended(record: SoakRecord) -> Table:
    """A row for each client process: how its calls ended."""
    outcomes = [outcome for outcome in CallOutcome if any(user.outcomes.get(outcome) for user in record.users)]
    table = plain_table(("client process", "models", "callers", "calls", *outcomes), left=2)
    for user in record.users:
        counts = [user.outcomes.get(outcome, 0) for outcome in outcomes]
        cells = (f"{count:,}" for count in (sum(counts), *counts))
        table.add_row(user.name, " ".join(user.models), str(user.callers), *cells)
    totals = [sum(user.outcomes.get(outcome, 0) for user in record.users) for outcome in outcomes]
    table.add_row("all", "", "", *(f"{total:,}" for total in (sum(totals), *totals)), style="bold")
    return table


def grown(record: SoakRecord) -> Table:
    """The series closest to their limits, the worst first."""
    table = plain_table(("series", "first", "last", "growth", "limit"))
    for series in sorted(record.growths, key=lambda each: each.growth / each.allowed, reverse=True)[:SHOWN_SERIES]:
        amounts = (series.first, series.last, series.growth, series.allowed)
        table.add_row(series.series, *map(series.text, amounts))
    return table


def lines(record: SoakRecord) -> Iterator[str]:
    """Batching, growth and the verdict in sentences."""
    formed = (
        f"{model} {served.rows / served.executions:.2f} ({served.executions:,})"
        for model, served in record.served.items()
        if served.executions
    )
    yield f"rows per execution (executions): {', '.join(formed) or 'unknown, the server is gone'}"
    grows = sum(series.grows for series in record.growths)
    yield f"{grows} of {len(record.growths)} series of memory, descriptors, threads and files grow"
    if record.interrupted:
        yield f"interrupted after {record.seconds:.0f} of {record.minutes * 60:.0f} s"
    if not record.problems:
        yield f"no problems: {record.calls:,} calls in {record.seconds:.0f} s, each with an allowed outcome"
    yield from (f"PROBLEM {problem}" for problem in record.problems)
