"""Greedy by size: places the largest buffer first, each into the tightest gap between the buffers that share its time.

Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5.2. The tightest gap is
that of TensorFlow Lite's `SimpleMemoryArena` (tensorflow/lite/simple_memory_arena.cc).
"""

import bisect
from collections.abc import Sequence

from perf.memory.offline.buffer import Buffer, Placement, placed

NAME = "greedy by size"


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
