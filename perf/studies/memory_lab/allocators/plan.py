"""An offset plan of a recorded inference: the planned offset of each of its events."""

from collections.abc import Sequence
from dataclasses import dataclass

from perf.memory import greedy
from perf.memory.allocators.device import ALIGNMENT, rounded
from perf.memory.greedy import Buffer, Placement, peak_bytes
from perf.studies.memory_lab import omni
from perf.studies.memory_lab.traces.trace import Trace

# Above this a search is worse than greedy: with 18,692 buffers 1.065 of the load after 3 s, greedy 1.008.
MAX_SEARCHED_BUFFERS = 2000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Event k allocates `sizes[k]` bytes at `offsets[k]`, or frees the buffer at that offset if the size is -1.

    Sizes are rounded up to the plan's step. The events end with all buffers freed, so the next inference starts over.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    placement: Placement

    @property
    def bytes(self) -> int:
        """Bytes of the region that serves the whole plan."""
        return self.placement.height


def plan(trace: Trace, *, step: int = ALIGNMENT, timeout_s: float = 3.0) -> Plan:
    """The plan of a recorded inference; offsets are multiples of `step`."""
    return planned(trace, best_placement(buffers_of(trace, step), timeout_s))


def planned(trace: Trace, placement: Placement) -> Plan:
    """The plan of a trace with a known `placement`, whose buffers are in the order of the trace's allocations."""
    order = [(buffer.allocated_at, number, True) for number, buffer in enumerate(trace.allocations)]
    order += [(_end(buffer.freed_at, trace), number, False) for number, buffer in enumerate(trace.allocations)]
    order.sort()
    return Plan(
        sizes=tuple(placement.buffers[number].size if allocated else -1 for _, number, allocated in order),
        offsets=tuple(placement.offsets[number] for _, number, _ in order),
        placement=placement,
    )


def best_placement(buffers: Sequence[Buffer], timeout_s: float = 3.0) -> Placement:
    """The greedy placement; if it is above the load and there are few buffers, MiniMalloc's search below it.

    Without omnimalloc it is the greedy placement. The placement names its planner.
    """
    quick = greedy.plan(buffers)
    if quick.height == peak_bytes(buffers) or len(buffers) > MAX_SEARCHED_BUFFERS or omni.installed() is None:
        return quick
    return omni.minimised(buffers, timeout_s, quick)


def buffers_of(trace: Trace, step: int = 1) -> tuple[Buffer, ...]:
    """The trace's allocations as buffers of multiples of `step`; a buffer that is never freed lives to the end."""
    return tuple(
        Buffer(
            id=number,
            lower=buffer.allocated_at,
            upper=_end(buffer.freed_at, trace),
            size=rounded(buffer.requested_bytes, step),
        )
        for number, buffer in enumerate(trace.allocations)
    )


def _end(freed_at: int | None, trace: Trace) -> int:
    return trace.moments if freed_at is None else freed_at
