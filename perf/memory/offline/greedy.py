"""Greedy by size: the largest buffer first, each into the tightest gap among those that share its time.

Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5.2; the tightest gap as
in TensorFlow Lite's `SimpleMemoryArena` (tensorflow/lite/simple_memory_arena.cc).
"""

import bisect
from collections.abc import Sequence

from perf.memory.offline.buffer import Buffer, Placement, placed

NAME = "greedy by size"


def plan(buffers: Sequence[Buffer]) -> Placement:
    """A placement in O(n^2); between equal sizes the one that starts first goes first."""
    order = sorted(range(len(buffers)), key=lambda number: (-buffers[number].size, buffers[number].lower))
    offsets = [0] * len(buffers)
    # What is placed, by offset: (offset, end, lower, upper).
    done: list[tuple[int, int, int, int]] = []
    for number in order:
        one = buffers[number]
        spans = [(start, end) for start, end, lower, upper in done if lower < one.upper and one.lower < upper]
        offsets[number] = _tightest(spans, one.size)
        bisect.insort(done, (offsets[number], offsets[number] + one.size, one.lower, one.upper))
    return placed(NAME, buffers, offsets)


def _tightest(spans: list[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap of at least `size`, the lowest of equals; above everything where there is none."""
    best: tuple[int, int] | None = None
    top = 0
    for start, end in spans:
        gap = start - top
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, top)
        # The running top is a maximum: a long buffer may end above the one that starts after it.
        top = max(top, end)
    return top if best is None else best[1]
