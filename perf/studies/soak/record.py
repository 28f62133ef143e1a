"""The record of a soak: the client processes, how their calls ended, and all problems; one JSON file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.studies.experiment import Origin
from perf.studies.soak import growth
from perf.studies.soak.growth import GROWS, Growth
from perf.studies.soak.ledger import Failed

# Failed calls that are printed; the record has more.
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class User:
    """One client process: its job, and the number of its calls by outcome."""

    name: str
    shape: str
    transport: str
    models: tuple[str, ...]
    callers: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Served:
    """The server's counters of one model; rows per execution show whether batches formed."""

    requests: int
    failed_requests: int
    rows: int
    executions: int


@dataclass(frozen=True, kw_only=True)
class SoakRecord(Origin):
    """A run of `seconds` that was planned for `minutes`.

    `failed` has the first of `failures` in full; `faults` are of processes and of files that were left behind.
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
    failed: tuple[Failed, ...]
    faults: tuple[str, ...]
    growths: tuple[Growth, ...]
    rule: str = growth.__doc__ or ""

    @property
    def calls(self) -> int:
        """The number of calls that ended."""
        return sum(sum(user.outcomes.values()) for user in self.users)

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems, a line each."""
        calls = [f"{self.failures} calls or clients failed; the first of them:"] if self.failures else []
        calls += [f"  seed {self.seed}, {failure}" for failure in self.failed[:SHOWN]]
        grown = [
            f"{series.series} grows: {series.growth:+,.0f} {series.unit} in {series.window_s:.0f} s, "
            f"the limit is {series.allowed:,.0f}"
            for series in self.growths
            if series.verdict == GROWS
        ]
        return (*self.faults, *calls, *grown)

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return f"soak.{self.minutes:g}min.s{self.seed}.json"


def write(record: SoakRecord, folder: Path) -> Path:
    """Write the record with the verdict on each series; raises `RecordError`."""
    growths = [{**asdict(series), "verdict": series.verdict} for series in record.growths]
    return file.write(record, folder / record.file_name, growths=growths)


def load(path: Path) -> SoakRecord:
    """The record of a file; raises `RecordError`."""
    return file.read(path, SoakRecord, remedy="Run the soak again.")
