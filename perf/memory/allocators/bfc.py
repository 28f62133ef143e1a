"""Best fit with coalescing (BFC): TensorFlow's `BFCAllocator` and onnxruntime's `BFCArena`.

The rules follow tensorflow/core/common_runtime/bfc_allocator.cc (with `allow_growth`) and
onnxruntime/core/framework/bfc_arena.cc.
"""

from dataclasses import dataclass

from perf.memory.allocators.blocks import Block, Blocks
from perf.memory.allocators.device import Allocator, Device, OutOfMemory, rounded

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class BfcRules:
    """How a BFC arena rounds, splits and grows.

    With `doubling`, the size of a new region starts at `first_region_bytes` and doubles until the request fits. If the
    request fits without doubling, the next region is twice as large. Without `doubling` a region has the size of the
    request. If the device refuses a region, its size is multiplied by `backpedal` until the device accepts it, but
    never below the request or `least_backpedal_bytes`; with `backpedals_once` only the first refusal is handled that
    way. With `collects`, whole free regions go back to the device before an allocation fails.
    """

    step_bytes: int = 256
    first_region_bytes: int
    max_dead_bytes: int = 128 * MIB
    doubling: bool = True
    backpedal: float = 0.9
    least_backpedal_bytes: int = 0
    backpedals_once: bool = False
    collects: bool = False


TENSORFLOW = BfcRules(first_region_bytes=2 * MIB, backpedals_once=True, collects=True)
NEXT_POWER_OF_TWO = BfcRules(first_region_bytes=MIB, least_backpedal_bytes=8192)
SAME_AS_REQUESTED = BfcRules(first_region_bytes=MIB, least_backpedal_bytes=8192, doubling=False)
# `initial_growth_chunk_size_bytes`: the next region after a shrink.
GROWTH_AFTER_SHRINK_BYTES = 2 * MIB


class BfcArena(Allocator):
    """One arena of at most `limit_bytes` (None: unlimited).

    `in_use_bytes` and its peak count whole chunks, as `bytes_in_use` of both frameworks does. How much larger a chunk
    is than its request depends on what was allocated before: a chunk is split unless it is less than twice the request.
    So the same requests, among unknown ones, have a peak between `least_peak_bytes` and `most_peak_bytes`.
    """

    def __init__(self, device: Device, rules: BfcRules, limit_bytes: int | None = None) -> None:
        self.device = device
        self.rules = rules
        self.limit_bytes = limit_bytes
        self.in_use_bytes = self.peak_in_use_bytes = 0
        self._next_region_bytes = rounded(rules.first_region_bytes, rules.step_bytes)
        self._blocks = Blocks()
        self._regions: list[int] = []
        self._backpedalled = False
        self._reserved: dict[int, int] = {}
        self.least_peak_bytes = self.most_peak_bytes = 0
        # By address, and in total: the bytes that are needed, and the most that are in use for them.
        self._needs: dict[int, tuple[int, int]] = {}
        self._least = self._most = 0

    @property
    def held_bytes(self) -> int:
        """Bytes taken from the device, reservations included (onnxruntime's `total_allocated_bytes`)."""
        return self.device.held_bytes

    @property
    def next_region_bytes(self) -> int:
        """The size of the next region, if the request fits."""
        return self._next_region_bytes if self.rules.doubling else self.in_use_bytes

    def allocate(self, size: int) -> int:
        """The best-fitting chunk, else a new region; a chunk is split if it would waste half or `max_dead_bytes`."""
        need = rounded(size, self.rules.step_bytes)
        chunk = self._blocks.smallest(need) or self._extend(need)
        splits = chunk.size >= 2 * need or chunk.size - need >= self.rules.max_dead_bytes
        self._blocks.take(chunk, need if splits else None)
        self._count(chunk.size)
        self._need(chunk.address, need, need + min(need, self.rules.max_dead_bytes))
        return chunk.address

    def free(self, address: int) -> None:
        """Release a chunk and merge it with its free neighbours, never across regions."""
        least, most = self._needs.pop(address)
        self._least -= least
        self._most -= most
        if address in self._reserved:
            self._count(-self._reserved.pop(address))
            self.device.free(address)
            return
        chunk = self._blocks[address]
        size = chunk.size
        self._blocks.release(chunk)
        self._count(-size)

    def reserve(self, size: int) -> int:
        """onnxruntime's `Reserve` for weights: memory from the device outside the bins, counted as in use."""
        address = self.device.malloc(size)
        self._reserved[address] = size
        self._count(size)
        self._need(address, size, size)
        return address

    def shrink(self) -> None:
        """onnxruntime's `Shrink`: return free regions to the device, except the first one if regions double."""
        self._collect(self._regions[1:] if self.rules.doubling else self._regions)
        self._next_region_bytes = GROWTH_AFTER_SHRINK_BYTES

    def _extend(self, need: int) -> Block:
        try:
            return self._region(need)
        except OutOfMemory:
            if not (self.rules.collects and self._collect(self._regions)):
                raise
            return self._region(need)

    def _region(self, need: int) -> Block:
        size = self._region_bytes(need)
        if self.limit_bytes is not None:
            available = rounded(self.limit_bytes - self.held_bytes - self.rules.step_bytes + 1, self.rules.step_bytes)
            if need > available:
                raise OutOfMemory(f"{need:,} bytes requested, {available:,} left within the arena's limit")
            size = min(size, available)
        address, size = self._from_device(need, size)
        self._regions.append(address)
        return self._blocks.add(address, size)

    def _region_bytes(self, need: int) -> int:
        if not self.rules.doubling:
            return need
        fits = self._next_region_bytes >= need
        while self._next_region_bytes < need:
            self._next_region_bytes *= 2
        size = self._next_region_bytes
        if fits:
            self._next_region_bytes *= 2
        return size

    def _from_device(self, need: int, size: int) -> tuple[int, int]:
        """Address and size of a new region: `size` bytes, or less if the device refuses that."""
        try:
            return self.device.malloc(size), size
        except OutOfMemory:
            if self._backpedalled and self.rules.backpedals_once:
                raise
        self._backpedalled = True
        while True:
            cut = rounded(int(size * self.rules.backpedal), self.rules.step_bytes)
            if cut >= size or cut < max(need, self.rules.least_backpedal_bytes):
                raise OutOfMemory(f"{need:,} bytes requested, more than the device has left")
            size = cut
            try:
                return self.device.malloc(size), size
            except OutOfMemory:
                continue

    def _collect(self, regions: list[int]) -> bool:
        """Return the wholly free ones of these regions to the device; whether there were any."""
        whole = [start for start in regions if (block := self._blocks[start]).free and not block.split]
        for start in whole:
            self._blocks.remove(self._blocks[start])
            self._regions.remove(start)
            self.device.free(start)
        return bool(whole)

    def _need(self, address: int, least: int, most: int) -> None:
        self._needs[address] = least, most
        self._least += least
        self._most += most
        self.least_peak_bytes = max(self.least_peak_bytes, self._least)
        self.most_peak_bytes = max(self.most_peak_bytes, self._most)

    def _count(self, size: int) -> None:
        self.in_use_bytes += size
        self.peak_in_use_bytes = max(self.peak_in_use_bytes, self.in_use_bytes)


def tensorflow(device: Device) -> BfcArena:
    """TensorFlow's GPU allocator with `allow_growth`."""
    return BfcArena(device, TENSORFLOW)


def onnxruntime_power(device: Device) -> BfcArena:
    """onnxruntime's arena with its default strategy, `kNextPowerOfTwo`."""
    return BfcArena(device, NEXT_POWER_OF_TWO)


def onnxruntime_same(device: Device) -> BfcArena:
    """onnxruntime's arena with `kSameAsRequested`."""
    return BfcArena(device, SAME_AS_REQUESTED)
