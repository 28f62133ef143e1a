"""The record of a soak: what was tried, how each call ended, and what was found; one JSON file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.studies.soak import growth
from perf.studies.soak.growth import GROWS, Growth
from perf.studies.soak.ledger import Failed
from triton_batching.machine import Machine

# Failed calls that are printed; the record has more.
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class User:
    """One client process: its job in words, and how many of its calls ended in which way."""

    name: str
    shape: str
    transport: str
    models: tuple[str, ...]
    callers: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the server counted for one model: rows per execution say whether batches formed."""

    requests: int
    failed_requests: int
    rows: int
    executions: int


@dataclass(frozen=True, kw_only=True)
class SoakRecord:
    """A run of `seconds`, of which `minutes` were asked for.

    `failed` holds the first of `failures` in full; `faults` are of processes and of what was left behind.
    """

    KIND: ClassVar[str] = "soak"
    FORMAT: ClassVar[int] = 1
    minutes: float
    seconds: float
    interrupted: bool
    seed: int
    started_at: str
    command: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]
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
        """How many calls ended."""
        return sum(sum(user.outcomes.values()) for user in self.users)

    @property
    def found(self) -> tuple[str, ...]:
        """Everything that is wrong, a line each; none in a clean run."""
        calls = [f"{self.failures} calls or clients failed; the first of them:"] if self.failures else []
        calls += [f"  seed {self.seed}, {failure}" for failure in self.failed[:SHOWN]]
        grown = [
            f"{series.series} grows: {series.growth:+,.0f} {series.unit} in {series.window_s:.0f} s, "
            f"allowed are {series.allowed:,.0f}"
            for series in self.growths
            if series.verdict == GROWS
        ]
        return (*self.faults, *calls, *grown)

    @property
    def file_name(self) -> str:
        """A name that a person can read."""
        return f"soak.{self.minutes:g}min.s{self.seed}.json"


def write(record: SoakRecord, folder: Path) -> Path:
    """Write it, whole or not at all."""
    growths = [{**asdict(series), "verdict": series.verdict} for series in record.growths]
    return file.write(record, folder / record.file_name, growths=growths)


def load(path: Path) -> SoakRecord:
    """Read one; raises `RecordError`."""
    return file.read(path, SoakRecord, remedy="Run the soak again.")
