"""Slabs of one size class each (Bonwick, "The Slab Allocator", USENIX 1994): a free list per class, no search."""

from perf.memory.allocators.device import Allocator, Device, rounded

MIN_CLASS_BYTES = 256
# As in jemalloc: at most a fifth of a block is waste.
CLASSES_PER_POWER = 4
SLAB_BYTES = 2 * 2**20


class Slab(Allocator):
    """Objects of at most half a slab share slabs of 2 MiB; a larger object has a region of its own.

    A freed object stays in its size class and is reused first. Nothing goes back to the device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._free: dict[int, list[int]] = {}
        self._live: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """The last freed object of the size class, else the first object of a new slab."""
        need = size_class(size)
        free = self._free.setdefault(need, [])
        if not free:
            count = max(1, SLAB_BYTES // need)
            start = self.device.malloc(SLAB_BYTES if count > 1 else need)
            free.extend(start + need * number for number in reversed(range(count)))
        address = free.pop()
        self._live[address] = need
        return address

    def free(self, address: int) -> None:
        """Return an object to its size class."""
        self._free[self._live.pop(address)].append(address)


def size_class(size: int) -> int:
    """The smallest size class of at least `size` bytes."""
    if size <= CLASSES_PER_POWER * MIN_CLASS_BYTES:
        return rounded(size, MIN_CLASS_BYTES)
    power = 1 << ((size - 1).bit_length() - 1)
    return rounded(size, power // CLASSES_PER_POWER)
