"""A trace replayed on an allocator: the addresses of the buffers, the memory held over time, the time of the calls."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.memory.allocators.device import Allocator, Device, DeviceCosts
from perf.studies.memory_lab.traces.trace import Trace

MAX_SAMPLES = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Buffer `number` of the trace: `size` requested bytes at `address` during the moments [`start`, `end`)."""

    number: int
    address: int
    size: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySample:
    """One moment: the live requested bytes, the bytes held from the device, the largest gap between live buffers."""

    moment: int
    live_bytes: int
    held_bytes: int
    largest_gap_bytes: int

    @property
    def scattered_share(self) -> float:
        """The share of the free bytes, 0 to 1, that one request cannot use: 1 - largest gap / free."""
        free = self.held_bytes - self.live_bytes
        return 1 - self.largest_gap_bytes / free if free > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One pass over a trace; `regions` maps the address of each device region to its largest size."""

    placed: tuple[Placed, ...]
    samples: tuple[MemorySample, ...]
    regions: dict[int, int]


def replay(trace: Trace, allocator: Allocator) -> Replay:
    """Replay a trace once, and free all remaining buffers at the end."""
    device = allocator.device
    regions: dict[int, int] = dict(device.regions)
    placed: list[Placed] = []
    samples: list[MemorySample] = []
    live: dict[int, tuple[int, int, int]] = {}
    live_bytes = 0
    every = max(1, trace.moments // MAX_SAMPLES)
    number_of = {id(buffer): number for number, buffer in enumerate(trace.allocations)}
    allocator.begin()
    for moment, (allocated, buffer) in enumerate(trace.events()):
        number = number_of[id(buffer)]
        if allocated:
            live[number] = (allocator.allocate(buffer.requested_bytes), buffer.requested_bytes, moment)
            live_bytes += buffer.requested_bytes
            for address, size in device.regions.items():
                regions[address] = max(size, regions.get(address, 0))
        else:
            address, size, start = live.pop(number)
            allocator.free(address)
            live_bytes -= size
            placed.append(Placed(number=number, address=address, size=size, start=start, end=moment))
        if moment % every == 0:
            gap = _largest_gap(device.regions, sorted(live.values()))
            samples.append(
                MemorySample(moment=moment, live_bytes=live_bytes, held_bytes=device.held_bytes, largest_gap_bytes=gap)
            )
    for number, (address, size, start) in live.items():
        allocator.free(address)
        placed.append(Placed(number=number, address=address, size=size, start=start, end=trace.moments))
    return Replay(placed=tuple(placed), samples=tuple(samples), regions=regions)


def overlaps(result: Replay) -> list[tuple[Placed, Placed]]:
    """Pairs of buffers that share an address and a moment; empty for a correct allocator."""
    events = sorted(
        (moment, kind, buffer.number)
        for buffer in result.placed
        for moment, kind in ((buffer.start, 1), (buffer.end, 0))
    )
    placed = {buffer.number: buffer for buffer in result.placed}
    live: set[int] = set()
    pairs = []
    for _, starts, number in events:
        if not starts:
            live.remove(number)
            continue
        buffer = placed[number]
        pairs += [
            (other, buffer)
            for other in (placed[number] for number in live)
            if buffer.address < other.address + other.size and other.address < buffer.address + buffer.size
        ]
        live.add(number)
    return pairs


def operation_us(trace: Trace, make: Callable[[Device], Allocator], costs: DeviceCosts, repeats: int = 5) -> float:
    """Microseconds of the allocator's own work per call after the first pass, the least of `repeats` passes.

    The time of the simulated device is left out. It is the time of a Python simulation, for comparisons between these
    allocators, not with their C++ originals.
    """
    device = _TimedDevice(costs=costs)
    allocator = make(device)
    calls = _calls(trace)
    _pass(calls, allocator)
    times = []
    for _ in range(repeats):
        device.seconds = 0.0
        times.append(_pass(calls, allocator) - device.seconds)
    return min(times) / max(1, len(calls)) * 1e6


def _calls(trace: Trace) -> list[tuple[int, int]]:
    """(buffer number, size) for each call, with size 0 for a release; remaining buffers are freed at the end."""
    number_of = {id(buffer): number for number, buffer in enumerate(trace.allocations)}
    calls = [
        (number_of[id(buffer)], buffer.requested_bytes if allocated else 0) for allocated, buffer in trace.events()
    ]
    return calls + [(number_of[id(buffer)], 0) for buffer in trace.unmatched]


def _pass(calls: Sequence[tuple[int, int]], allocator: Allocator) -> float:
    addresses = [0] * len(calls)
    allocate, free = allocator.allocate, allocator.free
    started = time.perf_counter()
    allocator.begin()
    for number, size in calls:
        if size:
            addresses[number] = allocate(size)
        else:
            free(addresses[number])
    return time.perf_counter() - started


class _TimedDevice(Device):
    """Counts the seconds of the device's own simulation."""

    seconds = 0.0

    def malloc(self, size: int, *, room: int | None = None) -> int:
        started = time.perf_counter()
        address = super().malloc(size, room=room)
        self.seconds += time.perf_counter() - started
        return address

    def extend(self, address: int, size: int) -> None:
        started = time.perf_counter()
        super().extend(address, size)
        self.seconds += time.perf_counter() - started

    def shrink(self, address: int, size: int) -> None:
        started = time.perf_counter()
        super().shrink(address, size)
        self.seconds += time.perf_counter() - started

    def free(self, address: int) -> None:
        started = time.perf_counter()
        super().free(address)
        self.seconds += time.perf_counter() - started


def _largest_gap(regions: dict[int, int], live: list[tuple[int, int, int]]) -> int:
    """The bytes of the largest part of a region without a live buffer; `live` is sorted by address."""
    largest, place = 0, 0
    for base, size in sorted(regions.items()):
        top = base
        while place < len(live) and live[place][0] < base + size:
            largest = max(largest, live[place][0] - top)
            top = live[place][0] + live[place][1]
            place += 1
        largest = max(largest, base + size - top)
    return largest
