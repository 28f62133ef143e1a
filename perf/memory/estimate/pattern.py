"""onnxruntime's memory pattern: where the buffers of one run could lie in a single block, for the runs to come.

The rules are those of `MemPatternPlanner` in onnxruntime/core/framework/mem_pattern_planner.h: online best fit.
"""

# kAllocAlignment of onnxruntime/core/framework/allocator.h.
ALIGNMENT = 256


class Pattern:
    """Follows the allocations of a run; `peak` is the size of the block that would have held them all."""

    def __init__(self) -> None:
        self.peak = 0
        # (offset, bytes, tensor), by offset.
        self._live: list[tuple[int, int, str]] = []

    def allocate(self, tensor: str, size: int) -> None:
        """Place a buffer in the gap that it fills best, the lowest of equals; above all others where none fits."""
        need = -(-size // ALIGNMENT) * ALIGNMENT
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

    def free(self, tensor: str) -> None:
        """The buffer of the tensor is free again."""
        self._live = [one for one in self._live if one[2] != tensor]
