"""The device that allocators take memory from, and the interface of an allocator."""

import bisect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

# cudaMalloc aligns to 256 bytes at least (CUDA C programming guide, "Device Memory Accesses").
ALIGNMENT = 256


class OutOfMemory(Exception):  # noqa: N818 - named as cudaErrorMemoryAllocation
    """The device has less free memory than the request."""


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """The modelled time of one cudaMalloc in microseconds, by size.

    It is interpolated in log-log scale between `points` (bytes, microseconds), both ascending. The default points are a
    second-hand measurement on an old GPU; the last one, 1 ms for 1 GiB, is an assumption. Give your own device's
    figures before you trust a total. A cudaFree costs `free_share` of a cudaMalloc.
    """

    points: tuple[tuple[int, float], ...] = ((256, 1.0), (4096, 50.0), (524_288, 50.0), (2**30, 1000.0))
    free_share: float = 1.0

    def malloc_us(self, size: int) -> float:
        """Microseconds of a cudaMalloc of `size` bytes; constant outside the points."""
        if size <= self.points[0][0]:
            return self.points[0][1]
        for (low, low_us), (high, high_us) in pairwise(self.points):
            if size <= high:
                share = math.log(size / low) / math.log(high / low)
                return float(low_us * (high_us / low_us) ** share)
        return self.points[-1][1]


class Device:
    """Memory of `limit_bytes` (None: unlimited). Each region gets the lowest free address.

    `regions` maps the address of each live region to its bytes; `us` is the modelled time of all calls.
    """

    def __init__(self, limit_bytes: int | None = None, costs: DeviceCosts | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.costs = costs or DeviceCosts()
        self.regions: dict[int, int] = {}
        self.mallocs = self.frees = self.extensions = 0
        self.held_bytes = self.peak_held_bytes = 0
        self.us = 0.0
        self._spans: list[tuple[int, int]] = []

    @property
    def calls(self) -> int:
        """The number of driver calls: cudaMalloc, cudaFree and changes of size in place."""
        return self.mallocs + self.frees + self.extensions

    def malloc(self, size: int, *, room: int | None = None) -> int:
        """The address of a new region; with `room`, that many addresses stay reserved so that it can grow in place.

        Raises `OutOfMemory` beyond the limit.
        """
        self._grow(size)
        address = self._lowest(room or size)
        bisect.insort(self._spans, (address, address + (room or size)))
        self.regions[address] = size
        self.mallocs += 1
        return address

    def extend(self, address: int, size: int) -> None:
        """Add `size` bytes to a region that has `room` (sbrk; on a GPU cuMemMap)."""
        self._grow(size)
        self.regions[address] += size
        self.extensions += 1

    def shrink(self, address: int, size: int) -> None:
        """Return the last `size` bytes of a region."""
        self.regions[address] -= size
        self.held_bytes -= size
        self.us += self.costs.free_share * self.costs.malloc_us(size)
        self.extensions += 1

    def free(self, address: int) -> None:
        """Return a region."""
        size = self.regions.pop(address)
        del self._spans[bisect.bisect_left(self._spans, (address, 0))]
        self.held_bytes -= size
        self.us += self.costs.free_share * self.costs.malloc_us(size)
        self.frees += 1

    def _grow(self, size: int) -> None:
        if self.limit_bytes is not None and self.held_bytes + size > self.limit_bytes:
            raise OutOfMemory(f"{size:,} bytes requested, {self.limit_bytes - self.held_bytes:,} free on the device")
        self.held_bytes += size
        self.peak_held_bytes = max(self.peak_held_bytes, self.held_bytes)
        self.us += self.costs.malloc_us(size)

    def _lowest(self, size: int) -> int:
        """The start of the first gap of at least `size`; 0 is never an address."""
        end = ALIGNMENT
        for start, stop in self._spans:
            if start - end >= size:
                break
            end = rounded(stop, ALIGNMENT)
        return end


class Allocator(ABC):
    """Gives out addresses within regions that it takes from `device`."""

    device: Device

    def begin(self) -> None:  # noqa: B027 - only the allocator with a plan uses it
        """Announce the start of an inference."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """The address of `size` > 0 bytes; raises `OutOfMemory`."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Release the block at `address`; raises `KeyError` if that address is not live."""


def rounded(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step
