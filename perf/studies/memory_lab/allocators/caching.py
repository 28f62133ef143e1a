"""PyTorch's caching allocator for CUDA: two pools of segments with best fit, which are never returned to the device.

The rules follow c10/cuda/CUDACachingAllocator.cpp with the default settings, for one stream and a device that is never
full.
"""

from perf.memory.allocators.blocks import Block, Blocks
from perf.memory.allocators.device import Allocator, Device, rounded

MIB = 2**20
MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_LARGE_BYTES = 10 * MIB
LARGE_STEP_BYTES = 2 * MIB


class Caching(Allocator):
    """One stream's view of the allocator of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._small, self._large = Blocks(), Blocks()
        self._pool_of: dict[int, Blocks] = {}

    def allocate(self, size: int) -> int:
        """A cached block, else a new segment; the rest of the block is split off if it is large enough."""
        need = max(MIN_BLOCK_BYTES, rounded(size, MIN_BLOCK_BYTES))
        pool = self._small if need <= SMALL_BYTES else self._large
        block = pool.smallest(need) or self._segment(pool, need)
        block = pool.take(block, need if self._splits(pool, block, need) else None)
        self._pool_of[block.address] = pool
        return block.address

    def free(self, address: int) -> None:
        """Return a block to its pool and merge it with its free neighbours in the segment."""
        pool = self._pool_of.pop(address)
        pool.release(pool[address])

    def _splits(self, pool: Blocks, block: Block, need: int) -> bool:
        rest = block.size - need
        return rest >= MIN_BLOCK_BYTES if pool is self._small else rest > SMALL_BYTES

    def _segment(self, pool: Blocks, need: int) -> Block:
        size = segment_bytes(need)
        return pool.add(self.device.malloc(size), size)


def segment_bytes(need: int) -> int:
    """Bytes of the segment for a block of `need` bytes."""
    if need <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if need < MIN_LARGE_BYTES else rounded(need, LARGE_STEP_BYTES)
