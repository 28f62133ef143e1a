"""The device that allocators take memory from: addresses, a limit, and what every cudaMalloc and cudaFree costs."""

import bisect
import math
from dataclasses import dataclass
from itertools import pairwise

# cudaMalloc aligns to 256 bytes at least (CUDA C programming guide, "Device Memory Accesses").
ALIGNMENT = 256


class OutOfMemory(Exception):  # noqa: N818 - what cudaErrorMemoryAllocation says
    """The device has less free memory than was asked for."""


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """Microseconds of one cudaMalloc by its size: log-log interpolation between `points` (bytes, us), both ascending.

    The default is a second-hand measurement on an old GPU: under 1 us below 256 bytes, 50 us from 4 KB to 512 KB,
    growing above. Its last point, 1 ms for 1 GiB, is an assumption. `free_share` is cudaFree's cost over that of
    cudaMalloc. Put your own device's figures here before you trust a total.
    """

    points: tuple[tuple[int, float], ...] = ((256, 1.0), (4096, 50.0), (524_288, 50.0), (2**30, 1000.0))
    free_share: float = 1.0

    def malloc_us(self, size: int) -> float:
        """Cost of a cudaMalloc of `size` bytes; flat outside the points."""
        if size <= self.points[0][0]:
            return self.points[0][1]
        for (low, low_us), (high, high_us) in pairwise(self.points):
            if size <= high:
                share = math.log(size / low) / math.log(high / low)
                return float(low_us * (high_us / low_us) ** share)
        return self.points[-1][1]


class Device:
    """Memory of `limit_bytes` (None: no end), given out at the lowest free address and counted.

    `regions` maps the address of what is given out now to its bytes; `us` is the modelled time of all calls.
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
        """All that went to the driver: cudaMalloc, cudaFree and growths in place."""
        return self.mallocs + self.frees + self.extensions

    def malloc(self, size: int, *, room: int | None = None) -> int:
        """Address of `size` new bytes; `room` keeps that many addresses free behind it, so that it can `extend`."""
        self._grow(size)
        address = self._lowest(room or size)
        bisect.insort(self._spans, (address, address + (room or size)))
        self.regions[address] = size
        self.mallocs += 1
        return address

    def extend(self, address: int, size: int) -> None:
        """Add `size` bytes behind a region that was given `room` (sbrk; on a GPU cuMemMap)."""
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
            raise OutOfMemory(f"{size:,} bytes asked, {self.limit_bytes - self.held_bytes:,} of the device are free")
        self.held_bytes += size
        self.peak_held_bytes = max(self.peak_held_bytes, self.held_bytes)
        self.us += self.costs.malloc_us(size)

    def _lowest(self, size: int) -> int:
        """First gap between the spans; 0 is not an address."""
        end = ALIGNMENT
        for start, stop in self._spans:
            if start - end >= size:
                break
            end = rounded(stop, ALIGNMENT)
        return end


def rounded(size: int, step: int) -> int:
    """`size` up to the next multiple of `step`."""
    return -(-size // step) * step
