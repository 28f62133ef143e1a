"""The record of one server in one round, and the table of all rounds."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.table import Column, Table

from perf.records import file
from perf.studies.experiment import Origin
from perf.studies.peers.callers import CallerCounts
from perf.studies.peers.contenders import PeerLimits

LABELS = {
    "coalesced": "ours, calls merged",
    "mosec": "mosec",
    "http": "ours, HTTP",
    "grpc": "ours, gRPC",
    "litserve": "LitServe",
}
# The least median share of a server.
GATES = {"http": 0.85, "coalesced": 0.97}


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
    """One server in one round; the turns of the other servers came between its own."""

    KIND: ClassVar[str] = "peers"
    FORMAT: ClassVar[int] = 1
    contender: str
    round: int
    limits: PeerLimits
    turns: tuple[Turn, ...]

    @property
    def rows_per_s(self) -> float:
        """Answered calls per second; every call has one row."""
        return sum(turn.seen.calls for turn in self.turns) / sum(turn.seen.wall_s for turn in self.turns)

    @property
    def share(self) -> float:
        """Rows answered over those that onnxruntime alone answers on the same core at the largest batch."""
        return sum(turn.seen.calls for turn in self.turns) / sum(turn.ceiling_rows for turn in self.turns)

    def latency_ms(self, percentile: str) -> float:
        """The median over the turns of a percentile of the calls: p50 or p99."""
        return float(statistics.median(getattr(turn.seen, f"{percentile}_ms") for turn in self.turns))


def path(folder: Path, contender: str, number: int) -> Path:
    """The file of one record."""
    return folder / f"ranker.{contender}.r{number}.json"


def write(record: PeerRound, folder: Path) -> Path:
    """Write one record, with its rate and its share; raises `RecordError`."""
    target = path(folder, record.contender, record.round)
    return file.write(record, target, rows_per_s=record.rows_per_s, share=record.share)


def read(folder: Path) -> Iterator[PeerRound]:
    """All records of a folder; raises `RecordError`."""
    return (file.read(path, PeerRound) for path in sorted(folder.glob("ranker.*.r*.json")))


def table(records: Sequence[PeerRound]) -> Table:
    """Medians over the rounds, best first; the share of each round comes from its own ceiling."""
    columns = ("server", "share", "min..max", "gate", "rows/s", "p50 ms", "p99 ms", "n")
    caption = (
        "share: rows answered over those that onnxruntime alone answers on the same core in the same time;\n"
        "n: number of rounds; figures are medians over the rounds"
    )
    rows = Table(*(Column(name, no_wrap=True) for name in columns), caption=caption, padding=(0, 0))
    shares = _shares(records)
    measured = [name for name in LABELS if name in shares]
    for name in sorted(measured, key=lambda name: -statistics.median(shares[name])):
        rounds = [record for record in records if record.contender == name]
        share, gate = statistics.median(shares[name]), GATES.get(name)
        rows.add_row(
            LABELS[name],
            f"{share:.3f}",
            f"{min(shares[name]):.3f}..{max(shares[name]):.3f}",
            "" if gate is None else f">= {gate:.2f} {'yes' if share >= gate else 'NO'}",
            f"{statistics.median(record.rows_per_s for record in rounds):.0f}",
            f"{statistics.median(record.latency_ms('p50') for record in rounds):.1f}",
            f"{statistics.median(record.latency_ms('p99') for record in rounds):.1f}",
            str(len(rounds)),
        )
    return rows


def passed(records: Sequence[PeerRound]) -> bool:
    """Whether the median share of each measured server reaches its gate."""
    return all(statistics.median(shares) >= GATES.get(name, 0) for name, shares in _shares(records).items())


def _shares(records: Sequence[PeerRound]) -> dict[str, list[float]]:
    """The shares of all rounds, by server."""
    shares: dict[str, list[float]] = {}
    for record in records:
        shares.setdefault(record.contender, []).append(record.share)
    return shares
