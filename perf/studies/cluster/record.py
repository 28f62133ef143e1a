"""The records of these experiments."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.table import Table

from perf.records import file
from perf.studies.cluster.clients import PROTOCOLS, Counts
from perf.studies.experiment import Origin
from perf.studies.tables import plain_table

BACK_S = 10.0
SCALE_UP, SHARE_SPREAD, DOOR_COST = 2.7, 1.15, 1.15
TITLES = (
    "engine",
    "fault",
    "over",
    "rows",
    "requests",
    "failed",
    "wrong",
    "p50 before",
    "longest",
    "capacity back",
)


def fault_file(engine: str, fault: str, protocol: str, rows: int) -> str:
    """The name of the record of a fault."""
    return f"{engine}.{fault.replace(' ', '_')}.{protocol}.{rows}.json"


@dataclass(frozen=True, kw_only=True)
class FaultRecord(Origin):
    """A load on three replicas behind the front door, and one fault in it.

    fault_s: seconds from the start of the load to the fault. back_s: seconds from the fault until all replicas were
    ready again, None if that took longer than the trial. slow_s: seconds from the fault until the throughput of a
    second was 0.9 of that before it.
    """

    KIND: ClassVar[str] = "cluster fault"
    FORMAT: ClassVar[int] = 1
    engine: str
    model: str
    config_name: str | None
    fault: str
    protocol: str
    rows: int
    clients: int
    counts: Counts
    before: Counts
    errors: Mapping[str, int]
    fault_s: float
    back_s: float | None
    slow_s: float | None
    restarts: int

    @property
    def passed(self) -> bool:
        """Whether no request failed, no answer was wrong, and the capacity was back in time."""
        return not (self.counts.failed or self.counts.wrong) and self.back_s is not None and self.back_s <= BACK_S

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return fault_file(self.engine, self.fault, self.protocol, self.rows)

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / self.file_name)


@dataclass(frozen=True, kw_only=True)
class BalanceRound:
    """One round, in random order: one replica and three under the same clients, and one client with and without door.

    shares: requests of each replica in the load of three. direct_ms, door_ms: the p50 of a single client, by protocol.
    """

    one: Counts
    three: Counts
    shares: tuple[int, ...]
    direct_ms: Mapping[str, float]
    door_ms: Mapping[str, float]

    @property
    def gain(self) -> float:
        """Throughput of three replicas over that of one."""
        return self.three.per_s / self.one.per_s

    @property
    def spread(self) -> float:
        """The largest share over the smallest."""
        return max(self.shares) / max(1, min(self.shares))


@dataclass(frozen=True, kw_only=True)
class BalanceRecord(Origin):
    """How the load spreads over three replicas, and what the door costs."""

    KIND: ClassVar[str] = "cluster balance"
    FORMAT: ClassVar[int] = 1
    model: str
    config_name: str | None
    max_batch_size: int | None
    time_scale: float
    protocol: str
    clients: int
    rounds: tuple[BalanceRound, ...]

    @property
    def gain(self) -> float:
        """Throughput of three replicas over that of one: the median of the rounds."""
        return statistics.median(each.gain for each in self.rounds)

    @property
    def spread(self) -> float:
        """The largest share over the smallest: the median of the rounds."""
        return statistics.median(each.spread for each in self.rounds)

    def cost(self, protocol: str) -> float:
        """The p50 of one client through the door over that without it: the median of the rounds."""
        return statistics.median(each.door_ms[protocol] / each.direct_ms[protocol] for each in self.rounds)

    @property
    def passed(self) -> bool:
        """Whether the load is balanced, three replicas do the work of three, and the door is cheap."""
        cheap = all(self.cost(protocol) <= DOOR_COST for protocol in PROTOCOLS)
        return self.gain >= SCALE_UP and self.spread <= SHARE_SPREAD and cheap

    @property
    def file_name(self) -> str:
        """The name of the record."""
        size = "" if self.max_batch_size is None else f".batch_{self.max_batch_size}"
        return f"balance.{self.model}.{self.protocol}{size}.json"

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / self.file_name)


def fault_cells(record: FaultRecord) -> tuple[str, ...]:
    """The cells of a row."""
    return (
        record.engine,
        record.fault,
        record.protocol,
        str(record.rows),
        f"{record.counts.requests:,}",
        str(record.counts.failed),
        str(record.counts.wrong),
        f"{record.before.p50_ms:.0f} ms",
        f"{record.counts.longest_ms:,.0f} ms",
        "not" if record.back_s is None else f"{record.back_s:.1f} s",
    )


def faults(records: Sequence[FaultRecord]) -> Table:
    """The table of faults."""
    rows = plain_table(TITLES, left=3)
    for record in records:
        rows.add_row(*fault_cells(record))
    return rows


def balance_cells(record: BalanceRecord) -> tuple[str, ...]:
    """The cells of a row: medians of the rounds, with the smallest and the largest."""
    gains, spreads = [each.gain for each in record.rounds], [each.spread for each in record.rounds]
    costs = [
        f"{protocol} x {record.cost(protocol):.2f}"
        f" ({statistics.median(each.direct_ms[protocol] for each in record.rounds):.1f} ms)"
        for protocol in PROTOCOLS
    ]
    size = "" if record.max_batch_size is None else f", batches of {record.max_batch_size}"
    return (
        f"{record.model} {record.config_name or ''}{size}",
        record.protocol,
        str(len(record.rounds)),
        f"x {record.gain:.2f} ({min(gains):.2f} to {max(gains):.2f})",
        f"{record.spread:.2f} ({min(spreads):.2f} to {max(spreads):.2f})",
        ", ".join(costs),
    )


BALANCE_TITLES = (
    "model",
    "over",
    "rounds",
    "three replicas / one",
    "largest / smallest share",
    "one client's p50 through the door / without (without)",
)


def balance(records: Sequence[BalanceRecord]) -> Table:
    """The table of balances."""
    rows = plain_table(BALANCE_TITLES, left=2)
    for record in records:
        rows.add_row(*balance_cells(record))
    return rows
