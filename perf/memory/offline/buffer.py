"""What a planner is given, and what it answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf.memory.trace.trace import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """`size` > 0 bytes over the half-open time [`lower`, `upper`)."""

    id: int | str
    lower: int
    upper: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """An offset for every buffer, in their order; `planner` says who found it."""

    planner: str
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]

    @property
    def height(self) -> int:
        """Bytes from 0 to the end of the highest buffer."""
        return max((offset + one.size for offset, one in zip(self.offsets, self.buffers, strict=True)), default=0)


def load(buffers: Iterable[Buffer]) -> int:
    """Most bytes live at one time: the lower bound of every placement."""
    changes = sorted(change for one in buffers for change in ((one.lower, one.size), (one.upper, -one.size)))
    live = peak = 0
    # At equal times the negative change sorts first: lifetimes are half-open.
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak


def of_trace(trace: Trace, step: int = 1) -> tuple[Buffer, ...]:
    """The trace's allocations with sizes up to a multiple of `step`; what is not freed lives to the end."""
    end = trace.moments
    return tuple(
        Buffer(
            id=place,
            lower=one.allocated_at,
            upper=end if one.freed_at is None else one.freed_at,
            size=-(-one.requested_bytes // step) * step,
        )
        for place, one in enumerate(trace.allocations)
    )


def placed(planner: str, buffers: Sequence[Buffer], offsets: Iterable[int]) -> Placement:
    """A `Placement` of sequences of any kind."""
    return Placement(planner=planner, buffers=tuple(buffers), offsets=tuple(offsets))
