"""PyTorch's caching allocator for CUDA: two pools of segments with best fit, cached until the device is full.

The rules follow c10/cuda/CUDACachingAllocator.cpp for one stream, without expandable segments.
"""

from dataclasses import dataclass

from perf.memory.allocators.blocks import Block, Blocks
from perf.memory.allocators.device import Allocator, Device, OutOfMemory, rounded

MIB = 2**20
MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_LARGE_BYTES = 10 * MIB
LARGE_STEP_BYTES = 2 * MIB


@dataclass(frozen=True, kw_only=True)
class CachingRules:
    """`max_split_size_mb`, `roundup_power2_divisions` and `garbage_collection_threshold` of `PYTORCH_CUDA_ALLOC_CONF`.

    The threshold is a share of the device's limit; without a limit it has no effect.
    """

    max_split_bytes: int | None = None
    power_of_two_divisions: int = 0
    collection_threshold: float = 0.0


class Caching(Allocator):
    """One stream's view of the allocator of one device."""

    def __init__(self, device: Device, rules: CachingRules | None = None) -> None:
        self.device = device
        self.rules = rules or CachingRules()
        self._small, self._large = Blocks(), Blocks()
        self._pool_of: dict[int, Blocks] = {}
        # For garbage collection: the number of searches of the large pool, and that number when a block became free.
        self._searches = 0
        self._freed_at: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """A cached block, else a new segment; the rest is split off if the rules allow it."""
        need = round_size(size, self.rules.power_of_two_divisions)
        pool = self._small if need <= SMALL_BYTES else self._large
        block = self._cached(pool, need)
        if block is None:
            self._collect()
            block = self._segment(pool, need)
        block = pool.take(block, need if self._splits(pool, block, need) else None)
        self._pool_of[block.address] = pool
        if block.after is not None and block.after.free:
            self._freed_at[block.after.address] = self._searches
        return block.address

    def free(self, address: int) -> None:
        """Return a block to its pool and merge it with its free neighbours in the segment."""
        pool = self._pool_of.pop(address)
        block = pool.release(pool[address])
        self._freed_at[block.address] = self._searches

    def _cached(self, pool: Blocks, need: int) -> Block | None:
        self._searches += pool is self._large
        block = pool.smallest(need)
        top = self.rules.max_split_bytes
        if block is None or top is None:
            return block
        if need < top:
            return block if block.size < top else None
        return block if block.size < need + LARGE_SEGMENT_BYTES else None

    def _splits(self, pool: Blocks, block: Block, need: int) -> bool:
        rest = block.size - need
        if pool is self._small:
            return rest >= MIN_BLOCK_BYTES
        return rest > SMALL_BYTES and (self.rules.max_split_bytes is None or need < self.rules.max_split_bytes)

    def _segment(self, pool: Blocks, need: int) -> Block:
        """A new segment; if the device is full, release oversize blocks, then all whole blocks, then give up."""
        size = segment_bytes(need)
        for release in (self._release_oversize, self._release_all):
            try:
                return pool.add(self.device.malloc(size), size)
            except OutOfMemory:
                release(pool, need)
        return pool.add(self.device.malloc(size), size)

    def _release_oversize(self, pool: Blocks, need: int) -> None:
        """Release one sufficient free block, else the largest ones until they suffice.

        This is `release_available_cached_blocks`.
        """
        top = self.rules.max_split_bytes
        if top is None:
            return
        need = max(need, top)
        block = pool.smallest(need)
        if block is not None:
            self._release(pool, block)
            return
        for size, address in reversed(pool.free.copy()):
            if need <= 0 or size < top:
                return
            need -= size
            self._release(pool, pool[address])

    def _release_all(self, _pool: Blocks, _need: int) -> None:
        for pool in (self._large, self._small):
            for _, address in pool.free.copy():
                self._release(pool, pool[address])

    def _release(self, pool: Blocks, block: Block) -> None:
        if not block.split:
            pool.remove(block)
            self._freed_at.pop(block.address, None)
            self.device.free(block.address)

    def _collect(self) -> None:
        """Free whole large blocks of at least the mean age until the held bytes are below the threshold."""
        limit = self.device.limit_bytes
        if not self.rules.collection_threshold or limit is None:
            return
        threshold = int(self.rules.collection_threshold * limit)
        while self.device.held_bytes > threshold:
            whole = [block for _, address in self._large.free if not (block := self._large[address]).split]
            if not whole:
                return
            ages = [self._searches - self._freed_at[block.address] for block in whole]
            for block, age in zip(whole, ages, strict=True):
                if age >= sum(ages) / len(ages):
                    self._release(self._large, block)


def round_size(size: int, divisions: int = 0) -> int:
    """`size` rounded up to 512 bytes, or to one of `divisions` steps between powers of two if above 512 x divisions."""
    if divisions > 1 and size > MIN_BLOCK_BYTES * divisions:
        power = 1 << (size - 1).bit_length()
        if power == size:
            return size
        return rounded(size, power // 2 // divisions)
    return max(MIN_BLOCK_BYTES, rounded(size, MIN_BLOCK_BYTES))


def segment_bytes(need: int) -> int:
    """Bytes of the segment for a block of `need` bytes."""
    if need <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if need < MIN_LARGE_BYTES else rounded(need, LARGE_STEP_BYTES)
