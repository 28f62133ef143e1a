"""onnxruntime's memory pattern: where the buffers of one run could lie in a single block, for the runs to come.

The rules are those of `MemPatternPlanner` in onnxruntime/core/framework/mem_pattern_planner.h: online best fit.
"""

from collections.abc import Iterable
from functools import reduce
from operator import xor

from perf.memory.estimate.graph import Shape

# kAllocAlignment of onnxruntime/core/framework/allocator.h.
ALIGNMENT = 256


def key(inputs: Iterable[Shape]) -> int:
    """By what onnxruntime finds the pattern of a run: all its inputs' dimensions, combined by exclusive or.

    Different shapes may have one key: two inputs of the same shape cancel out, so that every batch size has the first
    one's pattern (`CalculateMemoryPatternsKey` in session_state.cc).
    """
    return reduce(xor, (dim for shape in inputs for dim in shape), 0)


class Pattern:
    """Follows the allocations of a run; `peak` is the size of the block that would have held them all."""

    def __init__(self) -> None:
        self.peak = 0
        self._sizes: dict[str, int] = {}
        # (offset, bytes, tensor), by offset.
        self._live: list[tuple[int, int, str]] = []

    def allocate(self, tensor: str, size: int) -> None:
        """Place a buffer in the gap that it fills best, the lowest of equals; above all others where none fits."""
        need = self._sizes[tensor] = _aligned(size)
        if not need:
            return
        gaps, top = [], 0
        for offset, held, _ in self._live:
            if offset - top >= need:
                gaps.append((offset - top, top))
            top = max(top, offset + held)
        if self.peak - top >= need:
            gaps.append((self.peak - top, top))
        at = min(gaps)[1] if gaps else top
        self.peak = max(self.peak, at + need)
        place = sum(offset < at for offset, _, _ in self._live)
        self._live.insert(place, (at, need, tensor))

    def holds(self, tensor: str, size: int) -> bool:
        """Whether the block has a place for this buffer: of the tensor, and of exactly its size."""
        return self._sizes.get(tensor) == _aligned(size)

    def free(self, tensor: str) -> None:
        """The buffer of the tensor is free again."""
        self._live = [one for one in self._live if one[2] != tensor]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
