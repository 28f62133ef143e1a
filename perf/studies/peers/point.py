"""The record of one server in one round, and the order of the servers in a round."""

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.studies.experiment import Origin, us_outside
from perf.studies.peers.callers import CallerCounts
from perf.studies.peers.contenders import PeerLimits

LABELS = {
    "coalesced": "ours, calls merged",
    "mosec_merged": "mosec, calls merged",
    "mosec": "mosec",
    "http": "ours, HTTP",
    "grpc": "ours, gRPC",
    "litserve": "LitServe",
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One short turn of one server; the ceiling is onnxruntime alone just before and just after, in rows/s."""

    seen: CallerCounts
    ceiling_before: float
    ceiling_after: float

    @property
    def ceiling_rows(self) -> float:
        """Rows that onnxruntime alone answers in the time of the turn."""
        return statistics.mean((self.ceiling_before, self.ceiling_after)) * self.seen.wall_s


@dataclass(frozen=True, kw_only=True)
class PeerRound(Origin):
    """One server in one round; the turns of the other servers came between its own.

    `contenders` are all servers of the round; `drawn` makes their order in each turn from `seed`. A record without a
    seed is of rounds in a rotating order.
    """

    KIND: ClassVar[str] = "peers"
    FORMAT: ClassVar[int] = 1
    contender: str
    round: int
    limits: PeerLimits
    turns: tuple[Turn, ...]
    seed: int | None = None
    contenders: tuple[str, ...] = ()

    @property
    def rows_per_s(self) -> float:
        """Answered calls per second; every call has one row."""
        return sum(turn.seen.calls for turn in self.turns) / sum(turn.seen.wall_s for turn in self.turns)

    @property
    def ceiling_rows_per_s(self) -> float:
        """Rows per second of onnxruntime alone on the same core at the largest batch, in the times of the turns."""
        return sum(turn.ceiling_rows for turn in self.turns) / sum(turn.seen.wall_s for turn in self.turns)

    @property
    def share(self) -> float:
        """Rows answered over those that onnxruntime alone answers in the same time."""
        return self.rows_per_s / self.ceiling_rows_per_s

    @property
    def us_per_request(self) -> float:
        """Microseconds per request outside onnxruntime."""
        return us_outside(self.rows_per_s, self.ceiling_rows_per_s)

    def latency_ms(self, percentile: str) -> float:
        """The median over the turns of a percentile of the calls: p50 or p99."""
        return float(statistics.median(getattr(turn.seen, f"{percentile}_ms") for turn in self.turns))


def drawn(names: Sequence[str], seed: int, number: int, turns: int) -> list[list[str]]:
    """The order of the servers in each turn of round `number`: drawn anew, the same for the same arguments."""
    rng = random.Random(f"{seed} {number}")
    return [rng.sample(sorted(names), len(names)) for _ in range(turns)]


def path(folder: Path, contender: str, number: int) -> Path:
    """The file of one record."""
    return folder / f"ranker.{contender}.r{number}.json"


def write(record: PeerRound, folder: Path) -> Path:
    """Write one record, with its rate, its share and its cost; raises `RecordError`."""
    target = path(folder, record.contender, record.round)
    derived = {name: getattr(record, name) for name in ("rows_per_s", "share", "us_per_request")}
    return file.write(record, target, **derived)


def read(folder: Path) -> Iterator[PeerRound]:
    """All records of a folder; raises `RecordError`."""
    return (file.read(path, PeerRound) for path in sorted(folder.glob("ranker.*.r*.json")))
