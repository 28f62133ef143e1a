"""A trace: what one allocator was asked for, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One buffer. It lives over the half-open range of moments [`allocated_at`, `freed_at`).

    A moment is the place of an event in the trace, counted from 0; `freed_at` None: not freed within the trace.
    `held_bytes` is what the recording allocator set aside for `requested_bytes`, where the tool tells it.
    """

    id: int | str
    requested_bytes: int
    held_bytes: int | None = None
    allocated_at: int
    freed_at: int | None = None
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something in the file that does not add up; `where` is its line, event or byte position."""

    where: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All allocations from `device` (an allocator's or a device's name) in order, over `moments` events.

    `source` says which tool wrote it, `remarks` what did not add up, and `model` and `rows` (of the batch) what ran,
    where that is known.
    """

    source: str
    device: str
    allocations: tuple[Allocation, ...]
    moments: int
    remarks: tuple[Remark, ...] = ()
    model: str = ""
    rows: int | None = None

    @property
    def unmatched(self) -> tuple[Allocation, ...]:
        """Allocations that are never freed."""
        return tuple(one for one in self.allocations if one.freed_at is None)

    @cached_property
    def live_peak_bytes(self) -> int:
        """Most requested bytes live at once: no allocator can hold less, so the lower bound of all of them."""
        live = peak = 0
        for allocated, one in self.events():
            live += one.requested_bytes if allocated else -one.requested_bytes
            peak = max(peak, live)
        return peak

    def events(self) -> Iterator[tuple[bool, Allocation]]:
        """(True, what is allocated) and (False, what is freed), in order."""
        order = [(one.allocated_at, True, one) for one in self.allocations]
        order += [(one.freed_at, False, one) for one in self.allocations if one.freed_at is not None]
        for _, allocated, one in sorted(order, key=lambda event: event[0]):
            yield allocated, one
