"""The records of these experiments."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.studies.cluster.clients import PROTOCOLS, Counts
from perf.studies.cluster.hostile import HostileOutcome
from perf.studies.experiment import Origin

BACK_S = 10.0
SCALE_UP, SHARE_SPREAD, DOOR_COST = 2.7, 1.15, 1.15
IN_TIME = 0.99


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


@dataclass(frozen=True, kw_only=True)
class HostileRecord(Origin):
    """A hostile load on the front door (see hostile.py). capacity_per_s: of the cluster, in a closed loop before."""

    KIND: ClassVar[str] = "cluster under attack"
    FORMAT: ClassVar[int] = 1
    model: str
    config_name: str | None
    time_scale: float
    seconds: float
    target_ms: float
    capacity_per_s: float
    outcome: HostileOutcome

    @property
    def passed(self) -> bool:
        """Whether no server died, no answer was wrong, and the honest tenants kept their target."""
        outcome = self.outcome
        lived = outcome.same_servers and not outcome.deaths and not outcome.proxy_restarts
        in_time = all(share >= IN_TIME for share in outcome.in_time.values())
        return lived and in_time and not any(counts.wrong for counts in outcome.tenants.values())

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return "hostile.json"

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / self.file_name)
