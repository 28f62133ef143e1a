"""One measured point of the comparison, as a JSON file, and the table that is made of all of them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.table import Column, Table

from perf.records import file
from perf.studies.peers.callers import CallerCounts
from perf.studies.peers.contenders import PeerLimits
from triton_batching.machine import Machine

LABELS = {
    "coalesced": "ours, calls merged",
    "mosec": "mosec",
    "http": "ours, HTTP",
    "grpc": "ours, gRPC",
    "litserve": "LitServe",
}
GATES = {"http": 0.85, "coalesced": 0.97}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One short turn of one server; the ceiling is onnxruntime alone, right before and right after, in rows/s."""

    seen: CallerCounts
    ceiling_before: float
    ceiling_after: float

    @property
    def ceiling_rows(self) -> float:
        """Rows that onnxruntime alone would have answered in the time of the turn."""
        return statistics.mean((self.ceiling_before, self.ceiling_after)) * self.seen.wall_s


@dataclass(frozen=True, kw_only=True)
class PeerRound:
    """One server in one round: its turns, which took place between those of the others."""

    KIND: ClassVar[str] = "peers"
    FORMAT: ClassVar[int] = 1
    contender: str
    round: int
    limits: PeerLimits
    turns: tuple[Turn, ...]
    machine: Machine
    versions: Mapping[str, str]
    started_at: str
    command: tuple[str, ...]

    @property
    def rows_per_s(self) -> float:
        """Answered calls per second; every call has one row."""
        return sum(turn.seen.calls for turn in self.turns) / sum(turn.seen.wall_s for turn in self.turns)

    @property
    def share(self) -> float:
        """Rows answered, of those that onnxruntime answers alone on the server's core at the largest batch."""
        return sum(turn.seen.calls for turn in self.turns) / sum(turn.ceiling_rows for turn in self.turns)

    def latency_ms(self, percentile: str) -> float:
        """The median over the turns of a percentile of the calls: p50 or p99."""
        return float(statistics.median(getattr(turn.seen, f"{percentile}_ms") for turn in self.turns))


def path(folder: Path, contender: str, number: int) -> Path:
    """The file of one point."""
    return folder / f"ranker.{contender}.r{number}.json"


def write(point: PeerRound, folder: Path) -> Path:
    """Write one record, whole or not at all; raises `RecordError`."""
    return file.write(point, path(folder, point.contender, point.round), rows_per_s=point.rows_per_s, share=point.share)


def read(folder: Path) -> Iterator[PeerRound]:
    """All records of a folder; raises `RecordError` for a file that is none."""
    return (file.read(path, PeerRound) for path in sorted(folder.glob("ranker.*.r*.json")))


def table(points: Sequence[PeerRound]) -> Table:
    """Medians over the rounds, best first; the share of each round is taken from its own ceiling."""
    columns = ("server", "share", "min..max", "gate", "rows/s", "p50 ms", "p99 ms", "n")
    caption = (
        "share: rows answered, of those that onnxruntime answers alone on the same core in the same time;\n"
        "n: rounds, of which the medians are"
    )
    made = Table(*(Column(name, no_wrap=True) for name in columns), caption=caption, padding=(0, 0))
    by_name = {name: [point for point in points if point.contender == name] for name in LABELS}
    for name, mine in sorted(by_name.items(), key=lambda item: -_median([point.share for point in item[1]])):
        if not mine:
            continue
        shares = [point.share for point in mine]
        gate = GATES.get(name)
        met = "" if gate is None else f">= {gate:.2f} {'yes' if _median(shares) >= gate else 'NO'}"
        made.add_row(
            LABELS[name],
            f"{_median(shares):.3f}",
            f"{min(shares):.3f}..{max(shares):.3f}",
            met,
            f"{_median([point.rows_per_s for point in mine]):.0f}",
            f"{_median([point.latency_ms('p50') for point in mine]):.1f}",
            f"{_median([point.latency_ms('p99') for point in mine]):.1f}",
            str(len(mine)),
        )
    return made


def passed(points: Sequence[PeerRound]) -> bool:
    """Whether the median share of each server that has a gate, and was measured, reaches it."""
    shares = {name: [point.share for point in points if point.contender == name] for name in GATES}
    return all(_median(mine) >= GATES[name] for name, mine in shares.items() if mine)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
