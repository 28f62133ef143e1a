"""Buffers, the input of a planner, and placements, its output."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """`size` > 0 bytes, live over the half-open time [`lower`, `upper`)."""

    id: int | str
    lower: int
    upper: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The offset of each buffer, in the order of `buffers`, by the planner named `planner`."""

    planner: str
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]

    @property
    def height(self) -> int:
        """Bytes from 0 to the end of the highest buffer."""
        return max((offset + buffer.size for offset, buffer in zip(self.offsets, self.buffers, strict=True)), default=0)


def load(buffers: Iterable[Buffer]) -> int:
    """The most bytes live at one time: the lower bound of every placement's height."""
    changes = sorted(
        change for buffer in buffers for change in ((buffer.lower, buffer.size), (buffer.upper, -buffer.size))
    )
    live = peak = 0
    # At equal times the negative change sorts first: lifetimes are half-open.
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak


def placed(planner: str, buffers: Sequence[Buffer], offsets: Iterable[int]) -> Placement:
    """The `Placement` of any sequences of buffers and offsets."""
    return Placement(planner=planner, buffers=tuple(buffers), offsets=tuple(offsets))
