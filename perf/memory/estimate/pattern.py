"""onnxruntime's memory pattern: the offsets of the buffers of one run within a single block, for use in later runs.

The rules follow `MemPatternPlanner` in onnxruntime/core/framework/mem_pattern_planner.h: online best fit.
"""

from collections.abc import Iterable
from functools import reduce
from operator import xor

from perf.memory.estimate.graph import Shape

# kAllocAlignment of onnxruntime/core/framework/allocator.h.
ALIGNMENT = 256


def key(inputs: Iterable[Shape]) -> int:
    """onnxruntime's key of a memory pattern: the exclusive or of all dimensions of the inputs.

    Different shapes may have the same key. Two inputs of the same shape cancel out, so all batch sizes then share the
    pattern of the first run (`CalculateMemoryPatternsKey` in session_state.cc).
    """
    return reduce(xor, (dim for shape in inputs for dim in shape), 0)


class Pattern:
    """Records the allocations of a run; `peak` is the size of a block for all of them."""

    def __init__(self) -> None:
        self.peak = 0
        self._sizes: dict[str, int] = {}
        # (offset, bytes, tensor), by offset.
        self._live: list[tuple[int, int, str]] = []

    def allocate(self, tensor: str, size: int) -> None:
        """Place a buffer in the tightest gap, the lowest of equals; above all other buffers if no gap fits."""
        need = self._sizes[tensor] = _aligned(size)
        if not need:
            return
        gaps, top = [], 0
        for offset, size_held, _ in self._live:
            if offset - top >= need:
                gaps.append((offset - top, top))
            top = max(top, offset + size_held)
        if self.peak - top >= need:
            gaps.append((self.peak - top, top))
        at = min(gaps)[1] if gaps else top
        self.peak = max(self.peak, at + need)
        place = sum(offset < at for offset, _, _ in self._live)
        self._live.insert(place, (at, need, tensor))

    def holds(self, tensor: str, size: int) -> bool:
        """Whether the block has a place for this tensor at exactly this size."""
        return self._sizes.get(tensor) == _aligned(size)

    def free(self, tensor: str) -> None:
        """Release the buffer of a tensor."""
        self._live = [buffer for buffer in self._live if buffer[2] != tensor]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
