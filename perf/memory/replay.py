"""A trace replayed on an allocator: where every buffer lay, what was held over time, and how long the calls took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.memory.allocators.allocator import Allocator
from perf.memory.allocators.device import Device, DeviceCosts
from perf.memory.trace.trace import Trace

MOST_SAMPLES = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Buffer `number` of the trace, `size` requested bytes at `address` over the moments [`start`, `end`)."""

    number: int
    address: int
    size: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One moment: bytes requested and live, bytes held from the device, and the largest gap between live buffers."""

    moment: int
    live_bytes: int
    held_bytes: int
    largest_gap_bytes: int

    @property
    def scattered_share(self) -> float:
        """Share of the free bytes, 0 to 1, that one request could not get: 1 - largest gap / free."""
        free = self.held_bytes - self.live_bytes
        return 1 - self.largest_gap_bytes / free if free > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One pass over a trace; `regions` maps every device region that was held in it to its largest size."""

    placed: tuple[Placed, ...]
    samples: tuple[Sample, ...]
    regions: dict[int, int]


def replay(trace: Trace, allocator: Allocator) -> Replay:
    """Replay once, and free at the end what the trace does not free."""
    device = allocator.device
    regions: dict[int, int] = dict(device.regions)
    placed: list[Placed] = []
    samples: list[Sample] = []
    live: dict[int, tuple[int, int, int]] = {}
    live_bytes = 0
    every = max(1, trace.moments // MOST_SAMPLES)
    number_of = {id(one): number for number, one in enumerate(trace.allocations)}
    allocator.begin()
    for moment, (allocated, one) in enumerate(trace.events()):
        number = number_of[id(one)]
        if allocated:
            live[number] = (allocator.allocate(one.requested_bytes), one.requested_bytes, moment)
            live_bytes += one.requested_bytes
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
                Sample(moment=moment, live_bytes=live_bytes, held_bytes=device.held_bytes, largest_gap_bytes=gap)
            )
    for number, (address, size, start) in live.items():
        allocator.free(address)
        placed.append(Placed(number=number, address=address, size=size, start=start, end=trace.moments))
    return Replay(placed=tuple(placed), samples=tuple(samples), regions=regions)


def overlaps(found: Replay) -> list[tuple[Placed, Placed]]:
    """Pairs of buffers that share an address and a moment: of a right allocator, none."""
    events = sorted(
        (moment, kind, one.number) for one in found.placed for moment, kind in ((one.start, 1), (one.end, 0))
    )
    placed = {one.number: one for one in found.placed}
    live: set[int] = set()
    wrong = []
    for _, starts, number in events:
        one = placed[number]
        if not starts:
            live.remove(number)
            continue
        others = (placed[number] for number in live)
        wrong += [
            (other, one)
            for other in others
            if one.address < other.address + other.size and other.address < one.address + one.size
        ]
        live.add(number)
    return wrong


def operation_us(trace: Trace, make: Callable[[Device], Allocator], costs: DeviceCosts, repeats: int = 5) -> float:
    """Microseconds of the allocator's own work per call in a pass after the first, the least of `repeats` passes.

    Without the time that the simulated device takes. It is the time of this Python simulation: it compares allocators
    with each other, and says nothing of their C++ originals.
    """
    device = _TimedDevice(costs=costs)
    allocator = make(device)
    calls = _calls(trace)
    _pass(calls, allocator)
    spent = []
    for _ in range(repeats):
        device.seconds = 0.0
        spent.append(_pass(calls, allocator) - device.seconds)
    return min(spent) / max(1, len(calls)) * 1e6


def _calls(trace: Trace) -> list[tuple[int, int]]:
    """(number, size), size 0 for a release; what is never freed is freed at the end."""
    number_of = {id(one): number for number, one in enumerate(trace.allocations)}
    calls = [(number_of[id(one)], one.requested_bytes if allocated else 0) for allocated, one in trace.events()]
    return calls + [(number_of[id(one)], 0) for one in trace.unmatched]


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
    """Counts the seconds that the simulation of the device itself takes."""

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
    """Largest stretch of any region without a live buffer; `live` by address."""
    largest, place = 0, 0
    for base, size in sorted(regions.items()):
        top = base
        while place < len(live) and live[place][0] < base + size:
            largest = max(largest, live[place][0] - top)
            top = live[place][0] + live[place][1]
            place += 1
        largest = max(largest, base + size - top)
    return largest
