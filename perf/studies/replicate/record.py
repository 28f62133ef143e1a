"""The record of a claim that was measured again, and the table of all records."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from rich.table import Table

from perf.records import file
from perf.stats.interval import Interval
from perf.studies.experiment import Origin, origin
from perf.studies.replicate.figure import Figure
from perf.studies.tables import plain_table

# The least share of the claims that must hold.
GATE = 0.9
# 0.9 x 10 must not round up to 10.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Replication(Origin):
    """One claim: the figure as it was printed from `record` in `page`, and as it was found now.

    `command` is that which measured it again.
    """

    KIND: ClassVar[str] = "replication"
    FORMAT: ClassVar[int] = 1
    claim: str
    page: str
    record: str
    printed: Figure
    found: Figure

    @property
    def held(self) -> bool:
        """Whether the printed interval holds the new value."""
        return self.printed.holds(self.found.value)

    @property
    def chance(self) -> float:
        """How often it would, if nothing had changed since."""
        return self.printed.chance(self.found.count)

    @property
    def change(self) -> Interval | None:
        """The new figure over the printed one, with the errors of both; None for exact figures."""
        return self.printed.change(self.found)

    @property
    def changed(self) -> bool:
        """Whether the figure is surely another one."""
        return not self.held if self.change is None else self.change.excludes_one

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, path(folder, self.claim), held=self.held, chance=self.chance)


@dataclass(frozen=True, kw_only=True)
class HeldCount(Origin):
    """How many of the `claims` held, and what chance alone would make of them if nothing had changed.

    `expected` is the mean number that would hold. At least `needed` of them would with the probability `chance`, if
    claims are independent; those of one `group` share rounds, so that their misses come together a little more often.
    """

    KIND: ClassVar[str] = "replication count"
    FORMAT: ClassVar[int] = 1
    claims: tuple[str, ...]
    held: int
    needed: int
    expected: float
    chance: float

    @classmethod
    def of(cls, records: Sequence[Replication], command: Sequence[str]) -> Self:
        """The count of these records."""
        chances, needed = [record.chance for record in records], math.ceil(GATE * len(records) - ROUNDING)
        return cls(
            claims=tuple(record.claim for record in records),
            held=sum(record.held for record in records),
            needed=needed,
            expected=sum(chances),
            chance=at_least(needed, chances),
            **origin(command, max((record.started_at for record in records), default="")),
        )

    @property
    def passed(self) -> bool:
        """Whether enough claims held."""
        return self.held >= self.needed

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / "held.json")


def at_least(count: int, chances: Sequence[float]) -> float:
    """The probability that at least `count` of independent events with these chances happen (Poisson's binomial)."""
    numbers = np.ones(1)
    for chance in chances:
        numbers = np.convolve(numbers, [1 - chance, chance])
    return float(np.sum(numbers[count:]))


def path(folder: Path, claim: str) -> Path:
    """The file of the record of a claim."""
    return folder / f"{claim.replace(' ', '_')}.json"


def read(folder: Path) -> Iterator[Replication]:
    """All records of a folder, by file name; raises `RecordError`."""
    paths = (each for each in sorted(folder.glob("*.json")) if file.kind_of(each) != HeldCount.KIND)
    return (file.read(each, Replication) for each in paths)


def table(records: Sequence[Replication]) -> Table:
    """A row for each claim."""
    titles = ("claim", "printed in", "printed", "interval of", "now", "rounds now", "held", "expected", "now / printed")
    shown = plain_table(titles, left=2)
    for record in records:
        kind = record.printed.kind if record.printed.count < 2 else f"{record.printed.count} {record.printed.kind}"
        shown.add_row(
            record.claim,
            record.page,
            str(record.printed),
            kind,
            str(record.found),
            str(record.found.count),
            "yes" if record.held else "NO",
            f"{record.chance:.0%}",
            "" if record.change is None else str(record.change),
        )
    return shown


def sentences(records: Sequence[Replication], count: HeldCount) -> list[str]:
    """How many held, how many should have, how many changed, and what the intervals claim."""
    within = sum(record.printed.kind != "exact" for record in records)
    changed = sum(record.changed for record in records)
    return [
        f"{count.held} of {len(records)} printed intervals hold the new value.",
        f"If nothing had changed, {count.expected:.1f} would, and {count.needed} or more with a probability of "
        f"{count.chance:.0%}: the new values have noise as well.",
        f"{changed} surely changed: now / printed, with the noise of both, is not 1.",
        f"{within} intervals are of the rounds of one run, so they do not claim to hold on another day.",
    ]
