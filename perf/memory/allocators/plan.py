"""A plan: the events of a recorded inference, each with the offset that was planned for it."""

from dataclasses import dataclass

from perf.memory.allocators.device import ALIGNMENT
from perf.memory.offline import best
from perf.memory.offline.buffer import Placement, of_trace
from perf.memory.trace.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`sizes[k]` bytes are allocated by event k at `offsets[k]`; size -1: what is at that offset is freed.

    Sizes are rounded as they were planned. The events end with everything freed: the next inference starts over.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    placement: Placement

    @property
    def bytes(self) -> int:
        """The one region that serves all of it."""
        return self.placement.height


def plan(trace: Trace, *, step: int = ALIGNMENT, timeout_s: float = 3.0) -> Plan:
    """Plan a recorded inference; offsets are multiples of `step`."""
    buffers = of_trace(trace, step)
    return planned(trace, best.plan(buffers, timeout_s))


def planned(trace: Trace, placement: Placement) -> Plan:
    """The plan of a trace whose `placement` is known; buffers are numbered in the order of the trace."""
    order = [(one.allocated_at, number, True) for number, one in enumerate(trace.allocations)]
    end = trace.moments
    order += [
        (end if one.freed_at is None else one.freed_at, number, False) for number, one in enumerate(trace.allocations)
    ]
    order.sort()
    return Plan(
        sizes=tuple(placement.buffers[number].size if allocated else -1 for _, number, allocated in order),
        offsets=tuple(placement.offsets[number] for _, number, _ in order),
        placement=placement,
    )
