"""The binary buddy allocator (Knowlton 1965; Knuth, The Art of Computer Programming 1, section 2.5)."""

import bisect

from perf.memory.allocators.device import Allocator, Device

MIN_BLOCK_BYTES = 256
FIRST_REGION_BYTES = 2 * 2**20


class Buddy(Allocator):
    """Every block has a power of two of bytes. It splits into two buddies, which merge when both are free.

    The first region has at least 2 MiB; each further one at least twice the bytes of the one before.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._next_region_bytes = FIRST_REGION_BYTES
        self._regions: list[tuple[int, int]] = []
        # Addresses of free blocks by size, ascending; sizes of live blocks by address.
        self._free: dict[int, list[int]] = {}
        self._live: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """The lowest of the smallest sufficient free blocks, halved until it has the right size."""
        need = max(MIN_BLOCK_BYTES, 1 << (size - 1).bit_length())
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
