"""One allocator on one trace: memory held, device calls, time, fragmentation and locality."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from perf.memory.allocators.bfc import onnxruntime_power, onnxruntime_same, tensorflow
from perf.memory.allocators.device import Allocator, Device, DeviceCosts
from perf.studies.memory_lab.allocators.best_fit import BestFit
from perf.studies.memory_lab.allocators.buddy import Buddy
from perf.studies.memory_lab.allocators.caching import Caching
from perf.studies.memory_lab.allocators.plan import Plan
from perf.studies.memory_lab.allocators.planned import Planned, Unplanned
from perf.studies.memory_lab.allocators.slab import Slab
from perf.studies.memory_lab.replay import Replay, operation_us, overlaps, replay
from perf.studies.memory_lab.traces.trace import Trace
from triton_batching.terminal import Failure

PLANNED = "planned"
# The simulated cache for the measure of locality, as a share of the live peak.
CACHE_SHARE = 0.25
# Pages in the live peak: enough for exact shares, and few enough for traces of thousands of buffers.
PAGES = 1024
MIN_PAGE_BYTES = 256


class Naive(Allocator):
    """A cudaMalloc for each request, a cudaFree for each release: PyTorch with `PYTORCH_NO_CUDA_MEMORY_CACHING=1`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, size: int) -> int:
        """A region of the device."""
        return self.device.malloc(size)

    def free(self, address: int) -> None:
        """Return the region to the device."""
        self.device.free(address)


# The allocators that need no plan.
ONLINE: dict[str, Callable[[Device], Allocator]] = {
    "naive": Naive,
    "tensorflow bfc": tensorflow,
    "onnxruntime power": onnxruntime_power,
    "onnxruntime same": onnxruntime_same,
    "pytorch caching": Caching,
    "best fit": BestFit,
    "buddy": Buddy,
    "slab": Slab,
}


@dataclass(frozen=True, kw_only=True)
class AllocatorTrial:
    """The result of two passes over a trace by one allocator.

    `held_bytes`: the most bytes held from the device.
    `first_calls`, `first_us`: the device calls of the first pass and their modelled time; `later_*` of the second.
    `operation_us`: the simulated allocator's own time per call in later passes.
    `idle_share`: the mean of 1 - live / held over the first pass.
    `scattered_share`: the mean of 1 - largest gap / free, the free memory that a single request cannot use.
    `locality`: of the second pass, see `locality`.
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
        """The allocator's own time and the modelled device time per call, in passes after the first."""
        return self.operation_us + self.later_us / max(1, self.calls_in_pass)


def allocators(plan: Plan) -> dict[str, Callable[[Device], Allocator]]:
    """All online allocators, and the one that follows `plan`."""
    return {**ONLINE, PLANNED: lambda device: Planned(device, plan)}


def trial(
    trace: Trace, name: str, make: Callable[[Device], Allocator], costs: DeviceCosts
) -> tuple[AllocatorTrial, Replay]:
    """Replay a trace twice, check both passes and time further ones; raises `Failure` if buffers overlap."""
    device = Device(costs=costs)
    allocator = make(device)
    first = _checked(name, trace, allocator)
    first_calls, first_us = device.calls, device.us
    later = _checked(name, trace, allocator)
    load = trace.live_peak_bytes
    result = AllocatorTrial(
        allocator=name,
        held_bytes=device.peak_held_bytes,
        held_over_load=device.peak_held_bytes / load,
        first_calls=first_calls,
        first_us=first_us,
        later_calls=device.calls - first_calls,
        later_us=device.us - first_us,
        operation_us=operation_us(trace, make, costs),
        calls_in_pass=len(trace.allocations) * 2,
        idle_share=_mean([1 - sample.live_bytes / sample.held_bytes for sample in first.samples if sample.held_bytes]),
        scattered_share=_mean([sample.scattered_share for sample in first.samples]),
        locality=locality(later, load),
        unplanned=allocator.unplanned if isinstance(allocator, Planned) else None,
    )
    return result, first


def locality(result: Replay, live_peak_bytes: int, cache_share: float = CACHE_SHARE) -> float:
    """The share of page touches, 0 to 1, that hit an LRU cache of `cache_share` x the live peak.

    Each buffer is touched twice, page by page: when it is allocated and when it is freed. An allocator that reuses
    memory that was just freed scores high; one that walks through fresh addresses scores low.
    """
    page = max(MIN_PAGE_BYTES, 1 << (live_peak_bytes // PAGES).bit_length())
    capacity = max(1, int(cache_share * live_peak_bytes / page))
    touched = [(buffer.start, 1, buffer.address, buffer.size) for buffer in result.placed]
    touched += [(buffer.end, 0, buffer.address, buffer.size) for buffer in result.placed]
    cache: OrderedDict[int, None] = OrderedDict()
    hits = touches = 0
    for _, _, address, size in sorted(touched):
        for number in range(address // page, (address + size - 1) // page + 1):
            touches += 1
            if number in cache:
                hits += 1
                cache.move_to_end(number)
                continue
            cache[number] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits / touches if touches else 0.0


def _checked(name: str, trace: Trace, allocator: Allocator) -> Replay:
    result = replay(trace, allocator)
    for buffer, other in overlaps(result):
        raise Failure(
            f"{name}: buffers {buffer.number} and {other.number} overlap at {other.address}. This is a bug of the lab."
        )
    for buffer in result.placed:
        end = buffer.address + buffer.size
        if not any(base <= buffer.address and end <= base + size for base, size in result.regions.items()):
            raise Failure(f"{name}: buffer {buffer.number} is outside all device regions. This is a bug of the lab.")
    return result


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
