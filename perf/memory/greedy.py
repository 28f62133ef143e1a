"""Memory offsets for buffers with known lifetimes, greedy by size.

The largest buffer is placed first, each into the tightest gap between the buffers that share its time: Pisarchyk and
Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5.2. The tightest gap is that of
TensorFlow Lite's `SimpleMemoryArena` (tensorflow/lite/simple_memory_arena.cc).
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NAME = "greedy by size"


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


def peak_bytes(buffers: Iterable[Buffer]) -> int:
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


def plan(buffers: Sequence[Buffer]) -> Placement:
    """A placement in O(n^2) steps; of equal sizes the buffer that starts first is placed first."""
    order = sorted(range(len(buffers)), key=lambda number: (-buffers[number].size, buffers[number].lower))
    offsets = [0] * len(buffers)
    # The placed buffers, by offset: (offset, end, lower, upper).
    done: list[tuple[int, int, int, int]] = []
    for number in order:
        buffer = buffers[number]
        spans = [(start, end) for start, end, lower, upper in done if lower < buffer.upper and buffer.lower < upper]
        offsets[number] = _tightest(spans, buffer.size)
        bisect.insort(done, (offsets[number], offsets[number] + buffer.size, buffer.lower, buffer.upper))
    return placed(NAME, buffers, offsets)


def _tightest(spans: list[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap of at least `size`, the lowest of equals; above all spans if there is no gap."""
    best: tuple[int, int] | None = None
    top = 0
    for start, end in spans:
        gap = start - top
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, top)
        # A span may end above the span that starts after it.
        top = max(top, end)
    return top if best is None else best[1]
