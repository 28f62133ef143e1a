"""The allocators that the lab replays, beside the arenas of `perf.memory.allocators.bfc`."""

import bisect
from collections.abc import Callable, Mapping

from perf.memory.allocators.bfc import onnxruntime_power, onnxruntime_same, tensorflow
from perf.memory.allocators.blocks import Block, Blocks
from perf.memory.allocators.device import Allocator, Device, rounded

MIB = 2**20


class Naive(Allocator):
    """A cudaMalloc for each request, a cudaFree for each release: PyTorch with `PYTORCH_NO_CUDA_MEMORY_CACHING=1`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, size: int) -> int:
        """A region of the device."""
        return self.device.malloc(size)

    def free(self, address: int) -> None:
        """Return the region to the device."""
        self.device.free(address)


class Caching(Allocator):
    """PyTorch's caching allocator for CUDA: two pools of segments with best fit, which never go back to the device.

    The rules follow c10/cuda/CUDACachingAllocator.cpp with the default settings, for one stream and a device that is
    never full.
    """

    MIN_BLOCK_BYTES = 512
    SMALL_BYTES = MIB
    SMALL_SEGMENT_BYTES = 2 * MIB
    LARGE_SEGMENT_BYTES = 20 * MIB
    MIN_LARGE_BYTES = 10 * MIB
    LARGE_STEP_BYTES = 2 * MIB

    def __init__(self, device: Device) -> None:
        self.device = device
        self._small, self._large = Blocks(), Blocks()
        self._pool_of: dict[int, Blocks] = {}

    def allocate(self, size: int) -> int:
        """A cached block, else a new segment; the rest of the block is split off if it is large enough."""
        need = rounded(size, self.MIN_BLOCK_BYTES)
        pool = self._small if need <= self.SMALL_BYTES else self._large
        block = pool.smallest(need) or self._segment(pool, need)
        block = pool.take(block, need if self._splits(pool, block.size - need) else None)
        self._pool_of[block.address] = pool
        return block.address

    def free(self, address: int) -> None:
        """Return a block to its pool and merge it with its free neighbours in the segment."""
        pool = self._pool_of.pop(address)
        pool.release(pool[address])

    def _splits(self, pool: Blocks, rest: int) -> bool:
        return rest >= self.MIN_BLOCK_BYTES if pool is self._small else rest > self.SMALL_BYTES

    def _segment(self, pool: Blocks, need: int) -> Block:
        if need <= self.SMALL_BYTES:
            size = self.SMALL_SEGMENT_BYTES
        else:
            is_small = need < self.MIN_LARGE_BYTES
            size = self.LARGE_SEGMENT_BYTES if is_small else rounded(need, self.LARGE_STEP_BYTES)
        return pool.add(self.device.malloc(size), size)


class BestFit(Allocator):
    """Best fit after dlmalloc 2.8.6 (Doug Lea): one growing heap; large requests are mapped.

    The heap grows by steps of 64 KiB and shrinks when more than 2 MiB at its top are free. Left out: the designated
    victim, which serves requests below 256 bytes, and headers, which a device's memory cannot hold.
    """

    STEP_BYTES = 256
    # DEFAULT_GRANULARITY, DEFAULT_MMAP_THRESHOLD and DEFAULT_TRIM_THRESHOLD of malloc.c.
    GRANULARITY_BYTES = 64 * 1024
    MMAP_THRESHOLD_BYTES = 256 * 1024
    TRIM_THRESHOLD_BYTES = 2 * MIB
    # Addresses reserved behind the heap so that it can grow in place (sbrk; on a GPU cuMemMap).
    ROOM_BYTES = 2**42

    def __init__(self, device: Device) -> None:
        self.device = device
        self._blocks = Blocks()
        self._heap: int | None = None
        self._last: Block | None = None
        self._top = self._top_bytes = 0
        self._mapped: set[int] = set()

    def allocate(self, size: int) -> int:
        """The best-fitting free block, else the top of the heap, else (from 256 KiB) a mapping, else a larger heap."""
        need = rounded(size, self.STEP_BYTES)
        block = self._blocks.smallest(need)
        if block is not None:
            return self._blocks.take(block, need).address
        if self._top_bytes < need:
            if self._top_bytes and need >= self.MMAP_THRESHOLD_BYTES:
                address = self.device.malloc(rounded(need, self.GRANULARITY_BYTES))
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
        size = rounded(need - self._top_bytes, self.GRANULARITY_BYTES)
        if self._heap is None:
            self._heap = self._top = self.device.malloc(size, room=self.ROOM_BYTES)
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
        if self._top_bytes > self.TRIM_THRESHOLD_BYTES and self._heap is not None:
            extra = (self._top_bytes - 1) // self.GRANULARITY_BYTES * self.GRANULARITY_BYTES
            self._top_bytes -= extra
            self.device.shrink(self._heap, extra)


class Buddy(Allocator):
    """The binary buddy allocator (Knowlton 1965; Knuth, The Art of Computer Programming 1, section 2.5).

    Every block has a power of two of bytes. It splits into two buddies, which merge when both are free. The first
    region has at least 2 MiB; each further one at least twice the bytes of the one before.
    """

    MIN_BLOCK_BYTES = 256
    FIRST_REGION_BYTES = 2 * MIB

    def __init__(self, device: Device) -> None:
        self.device = device
        self._next_region_bytes = self.FIRST_REGION_BYTES
        self._regions: list[tuple[int, int]] = []
        # Addresses of free blocks by size, ascending; sizes of live blocks by address.
        self._free: dict[int, list[int]] = {}
        self._live: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """The lowest of the smallest sufficient free blocks, halved until it has the right size."""
        need = max(self.MIN_BLOCK_BYTES, 1 << (size - 1).bit_length())
        have = min((block for block, addresses in self._free.items() if block >= need and addresses), default=0)
        address = self._free[have].pop(0) if have else self._region(need)
        have = have or self._regions[self._region_of(address)][1]
        while have > need:
            have //= 2
            self._add(have, address + have)
        self._live[address] = need
        return address

    def free(self, address: int) -> None:
        """Release a block and merge it with its buddy while that is free, up to the whole region."""
        size = self._live.pop(address)
        start, total = self._regions[self._region_of(address)]
        while size < total and self._take(size, buddy := start + ((address - start) ^ size)):
            address = min(address, buddy)
            size *= 2
        self._add(size, address)

    def _region(self, need: int) -> int:
        size = max(need, self._next_region_bytes)
        self._next_region_bytes = 2 * size
        address = self.device.malloc(size)
        bisect.insort(self._regions, (address, size))
        return address

    def _region_of(self, address: int) -> int:
        return bisect.bisect_right(self._regions, address, key=lambda region: region[0]) - 1

    def _add(self, size: int, address: int) -> None:
        bisect.insort(self._free.setdefault(size, []), address)

    def _take(self, size: int, address: int) -> bool:
        """Remove a free block from the list; whether it was there."""
        addresses = self._free.get(size, [])
        place = bisect.bisect_left(addresses, address)
        if place == len(addresses) or addresses[place] != address:
            return False
        del addresses[place]
        return True


# The allocators by name.
ONLINE: Mapping[str, Callable[[Device], Allocator]] = {
    "naive": Naive,
    "tensorflow bfc": tensorflow,
    "onnxruntime power": onnxruntime_power,
    "onnxruntime same": onnxruntime_same,
    "pytorch caching": Caching,
    "best fit": BestFit,
    "buddy": Buddy,
}
