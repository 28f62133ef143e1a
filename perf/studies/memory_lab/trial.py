"""One allocator on one trace: what it held, what it asked of the device, how long it took and how it fragmented."""

from collections.abc import Callable
from dataclasses import dataclass

from perf.memory.allocators.allocator import Allocator
from perf.memory.allocators.catalogue import ONLINE
from perf.memory.allocators.device import Device, DeviceCosts
from perf.memory.allocators.plan import Plan
from perf.memory.allocators.planned import Planned, Unplanned
from perf.memory.replay import Replay, operation_us, overlaps, replay
from perf.memory.trace.trace import Trace
from perf.studies.memory_lab.locality import locality
from triton_batching.terminal import Failure

PLANNED = "planned"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Results of two passes over a trace by one allocator.

    `held_bytes` is the most held from the device; `first_calls` and `first_us` are device calls of the first pass and
    their modelled time, `later_*` those of the second. `operation_us` is the simulated allocator's own time per call in
    later passes. `idle_share` is the mean of 1 - live / held over the first pass, and `scattered_share` that of
    1 - largest gap / free: what of the free memory one request could not get. `locality` is of the second pass.
    """

    allocator: str
    held_bytes: int
    held_over_load: float
    first_calls: int
    first_us: float
    later_calls: int
    later_us: float
    operation_us: float
    calls_in_pass: int
    idle_share: float
    scattered_share: float
    locality: float
    unplanned: Unplanned | None = None

    @property
    def later_operation_us(self) -> float:
        """Own time and modelled device time per call, in passes after the first."""
        return self.operation_us + self.later_us / max(1, self.calls_in_pass)


def allocators(plan: Plan) -> dict[str, Callable[[Device], Allocator]]:
    """Every online allocator, and the one that follows `plan`."""
    return {**ONLINE, PLANNED: lambda device: Planned(device, plan)}


def trial(trace: Trace, name: str, make: Callable[[Device], Allocator], costs: DeviceCosts) -> tuple[Trial, Replay]:
    """Replay twice, check both passes, and time further ones; raises `Failure` where the allocator is wrong."""
    device = Device(costs=costs)
    allocator = make(device)
    first = _checked(name, trace, allocator)
    first_calls, first_us = device.calls, device.us
    later = _checked(name, trace, allocator)
    load = trace.live_peak_bytes
    result = Trial(
        allocator=name,
        held_bytes=device.peak_held_bytes,
        held_over_load=device.peak_held_bytes / load,
        first_calls=first_calls,
        first_us=first_us,
        later_calls=device.calls - first_calls,
        later_us=device.us - first_us,
        operation_us=operation_us(trace, make, costs),
        calls_in_pass=len(trace.allocations) * 2,
        idle_share=_mean([1 - one.live_bytes / one.held_bytes for one in first.samples if one.held_bytes]),
        scattered_share=_mean([one.scattered_share for one in first.samples]),
        locality=locality(later, load),
        unplanned=allocator.unplanned if isinstance(allocator, Planned) else None,
    )
    return result, first


def _checked(name: str, trace: Trace, allocator: Allocator) -> Replay:
    found = replay(trace, allocator)
    wrong = overlaps(found)
    if wrong:
        one, other = wrong[0]
        raise Failure(f"{name}: buffers {one.number} and {other.number} overlap at {other.address} (a fault of ours).")
    for one in found.placed:
        if not any(
            base <= one.address and one.address + one.size <= base + size for base, size in found.regions.items()
        ):
            raise Failure(f"{name}: buffer {one.number} lies outside every region of the device (a fault of ours).")
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
