"""Best fit after dlmalloc 2.8.6 (Doug Lea, "A Memory Allocator"): one growing heap; large requests are mapped.

Left out: the designated victim, which serves requests below 256 bytes, and headers, which a device's memory cannot
hold.
"""

from perf.memory.allocators.blocks import Block, Blocks
from perf.memory.allocators.device import Allocator, Device, rounded

STEP_BYTES = 256
# DEFAULT_GRANULARITY, DEFAULT_MMAP_THRESHOLD and DEFAULT_TRIM_THRESHOLD of malloc.c.
GRANULARITY_BYTES = 64 * 1024
MMAP_THRESHOLD_BYTES = 256 * 1024
TRIM_THRESHOLD_BYTES = 2 * 2**20
# Addresses reserved behind the heap so that it can grow in place (sbrk; on a GPU cuMemMap).
ROOM_BYTES = 2**42


class BestFit(Allocator):
    """A heap that grows by steps of 64 KiB and shrinks when more than 2 MiB at its top are free."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._blocks = Blocks()
        self._heap: int | None = None
        self._last: Block | None = None
        self._top = self._top_bytes = 0
        self._mapped: set[int] = set()

    def allocate(self, size: int) -> int:
        """The best-fitting free block, else the top of the heap, else (from 256 KiB) a mapping, else a larger heap."""
        need = rounded(size, STEP_BYTES)
        block = self._blocks.smallest(need)
        if block is not None:
            return self._blocks.take(block, need).address
        if self._top_bytes < need:
            if self._top_bytes and need >= MMAP_THRESHOLD_BYTES:
                address = self.device.malloc(rounded(need, GRANULARITY_BYTES))
                self._mapped.add(address)
                return address
            self._grow(need)
        return self._cut_top(need).address

    def free(self, address: int) -> None:
        """Release a block, merge it with its neighbours and the top, and trim the top; or unmap a mapping."""
        if address in self._mapped:
            self._mapped.remove(address)
            self.device.free(address)
            return
        block = self._blocks.release(self._blocks[address])
        if block.after is None:
            self._last = block.before
            self._top = block.address
            self._top_bytes += block.size
            self._blocks.remove(block)
            self._trim()

    def _grow(self, need: int) -> None:
        size = rounded(need - self._top_bytes, GRANULARITY_BYTES)
        if self._heap is None:
            self._heap = self._top = self.device.malloc(size, room=ROOM_BYTES)
        else:
            self.device.extend(self._heap, size)
        self._top_bytes += size

    def _cut_top(self, need: int) -> Block:
        block = self._blocks.take(self._blocks.add(self._top, need))
        block.before = self._last
        if self._last is not None:
            self._last.after = block
        self._last = block
        self._top += need
        self._top_bytes -= need
        return block

    def _trim(self) -> None:
        """`sys_trim`: return whole steps of the top, all but the last."""
        if self._top_bytes > TRIM_THRESHOLD_BYTES and self._heap is not None:
            extra = (self._top_bytes - 1) // GRANULARITY_BYTES * GRANULARITY_BYTES
            self._top_bytes -= extra
            self.device.shrink(self._heap, extra)
