"""One allocator on one trace: memory held, device calls, time and fragmentation, with every placement checked."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from perf.memory.allocators.device import Allocator, Device
from perf.memory.greedy import Buffer
from perf.studies.memory_lab.offline import faults
from perf.studies.memory_lab.trace import Trace
from triton_batching.terminal import Failure


@dataclass(frozen=True, kw_only=True)
class AllocatorTrial:
    """The result of two passes over a trace by one allocator.

    `held_bytes`: the most bytes held from the device.
    `first_calls`, `first_us`: the device calls of the first pass and their modelled time; `later_*` of the second.
    `operation_us`: the time of the simulated allocator and device per call in later passes, in Python.
    `idle_share`: the mean of 1 - live / held over the first pass: what fragmentation and rounding cost.
    """

    allocator: str
    held_bytes: int
    held_over_load: float
    first_calls: int
    first_us: float
    later_calls: int
    later_us: float
    operation_us: float
    idle_share: float


def trial(trace: Trace, name: str, make: Callable[[Device], Allocator]) -> AllocatorTrial:
    """Replay a trace twice, check both passes and time further ones; raises `Failure` if buffers overlap."""
    device = Device()
    allocator = make(device)
    idle = _replay(trace, name, allocator)
    first_calls, first_us = device.calls, device.us
    _replay(trace, name, allocator)
    return AllocatorTrial(
        allocator=name,
        held_bytes=device.peak_held_bytes,
        held_over_load=device.peak_held_bytes / trace.live_peak_bytes,
        first_calls=first_calls,
        first_us=first_us,
        later_calls=device.calls - first_calls,
        later_us=device.us - first_us,
        operation_us=_operation_us(trace, make(Device())),
        idle_share=idle,
    )


def _replay(trace: Trace, name: str, allocator: Allocator) -> float:
    """One pass, in which remaining buffers are freed at the end; the mean share of idle memory."""
    device, live_bytes = allocator.device, 0
    live: dict[int, tuple[int, int]] = {}
    placed: list[tuple[Buffer, int]] = []
    shares: list[float] = []
    calls = [*trace.events(), *((False, trace.allocations.index(buffer)) for buffer in trace.unmatched)]
    for moment, (allocated, number) in enumerate(calls):
        size = trace.allocations[number].requested_bytes
        if allocated:
            address = allocator.allocate(size)
            if not any(base <= address and address + size <= base + held for base, held in device.regions.items()):
                raise Failure(f"{name}: buffer {number} is outside all device regions. This is a bug of the lab.")
            live[number] = address, moment
            live_bytes += size
        else:
            address, start = live.pop(number)
            allocator.free(address)
            live_bytes -= size
            placed.append((Buffer(id=number, lower=start, upper=moment, size=size), address))
        if device.held_bytes:
            shares.append(1 - live_bytes / device.held_bytes)
    buffers, addresses = zip(*placed, strict=True)
    if wrong := faults(buffers, addresses):
        raise Failure(f"{name}: {wrong[0]}. This is a bug of the lab.")
    return sum(shares) / len(shares)


def _operation_us(trace: Trace, allocator: Allocator, repeats: int = 5) -> float:
    """Microseconds per call after the first pass, the least of `repeats` passes."""
    sizes = [buffer.requested_bytes for buffer in trace.allocations]
    calls = [*trace.events(), *((False, trace.allocations.index(buffer)) for buffer in trace.unmatched)]
    addresses, times = [0] * len(sizes), []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        for allocated, number in calls:
            if allocated:
                addresses[number] = allocator.allocate(sizes[number])
            else:
                allocator.free(addresses[number])
        times.append(time.perf_counter() - started)
    return min(times[1:]) / max(1, len(calls)) * 1e6
