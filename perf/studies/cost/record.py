"""The record of what a call costs, its ratios and its gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.stats.interval import Interval
from perf.stats.rounds import paired
from perf.studies.experiment import Origin

RAW, HTTP, GRPC, SHARED, GRPCIO = "raw", "http", "grpc", "shared_memory", "grpcio alone"
THEIRS = ("tritonclient http", "tritonclient grpc")
TOGETHER = (RAW, HTTP, GRPC, SHARED, GRPCIO, *THEIRS)
"""The clients for asyncio: the floors over HTTP/1.1 and of grpcio, without any serializer; ours; tritonclient's."""

MERGED = ("http, coalesced", "grpc, coalesced")
"""Ours with `coalesce=True`, for requests of `MAIN` bytes."""

ALONE_RAW, ALONE_HTTP, ALONE_GRPC = "raw, blocking", "Model http", "Model grpc"
ALONE = (ALONE_RAW, ALONE_HTTP, ALONE_GRPC, "Model shared_memory", "tritonclient grpc, blocking")
"""The clients that block, with one call in flight."""

SIZES = (1 << 10, 12_800, 64 << 10, 256 << 10, 600 << 10)
MAIN = 12_800
"""The bytes of a request for which the gates are."""

MOST_OVER_RAW, LEAST_UNDER_THEIRS_HTTP, LEAST_UNDER_THEIRS_GRPC, MOST_BLOCKING_OVER_RAW = 1.45, 3.3, 1.2, 1.8


@dataclass(frozen=True, kw_only=True)
class CostCell:
    """Microseconds of CPU time of a call, one value for each round: in the client's own code, and in the system."""

    client: str
    request_bytes: int
    callers: int
    own_us: tuple[float, ...]
    system_us: tuple[float, ...]

    @property
    def all_us(self) -> tuple[float, ...]:
        """Both together."""
        return tuple(own + system for own, system in zip(self.own_us, self.system_us, strict=True))


@dataclass(frozen=True, kw_only=True)
class CostRecord(Origin):
    """What a call costs each client at each size, measured in turns."""

    KIND: ClassVar[str] = "cost"
    FORMAT: ClassVar[int] = 2
    cells: tuple[CostCell, ...]

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / "cost.json")


def find(cells: Sequence[CostCell], client: str, size: int = MAIN) -> CostCell | None:
    """The cell of one client; None if it was not measured."""
    return next((cell for cell in cells if (cell.client, cell.request_bytes) == (client, size)), None)


def over(cells: Sequence[CostCell], client: str, other: str, size: int = MAIN) -> Interval | None:
    """The cost of one client over that of another, from the ratio of each round; None if one was not measured."""
    first, second = find(cells, client, size), find(cells, other, size)
    return paired(first.all_us, second.all_us) if first and second else None


def size_text(size: int) -> str:
    """A number of bytes for a table."""
    return f"{size / 1024:.0f} KB" if size % 1024 == 0 else f"{size / 1000:.1f} KB"


def missed(cells: Sequence[CostCell]) -> list[str]:
    """The gates that the medians miss, in words."""
    words = []
    for ours, floor, most in ((HTTP, RAW, MOST_OVER_RAW), (ALONE_HTTP, ALONE_RAW, MOST_BLOCKING_OVER_RAW)):
        if (ratio := over(cells, ours, floor)) and ratio.value > most:
            words.append(f"{ours} costs {ratio.value:.2f} of {floor}, more than {most}")
    for ours, theirs, least in ((HTTP, THEIRS[0], LEAST_UNDER_THEIRS_HTTP), (GRPC, THEIRS[1], LEAST_UNDER_THEIRS_GRPC)):
        if (ratio := over(cells, theirs, ours)) and ratio.value < least:
            words.append(f"{theirs} costs {ratio.value:.2f} of AsyncModel over {ours}, less than {least}")
    return words
