"""A trace: all allocations and releases of one allocator, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One buffer, live over the half-open range of moments [`allocated_at`, `freed_at`).

    A moment is the index of an event in the trace. `freed_at` is None if the trace has no release. `held_bytes` is the
    number of bytes that the recording allocator reserved for `requested_bytes`; None if the tool does not say it.
    """

    id: int | str
    requested_bytes: int
    held_bytes: int | None = None
    allocated_at: int
    freed_at: int | None = None
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """An inconsistency in the file; `where` is its line, event or byte position."""

    where: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All allocations on `device` (the name of an allocator or device) in order, over `moments` events.

    `source` names the tool that wrote the file, `remarks` its inconsistencies. `model` and `rows` (the batch size) are
    empty or None if unknown.
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
        """The allocations that are never freed."""
        return tuple(buffer for buffer in self.allocations if buffer.freed_at is None)

    @cached_property
    def live_peak_bytes(self) -> int:
        """The most requested bytes live at once: the lower bound of every allocator."""
        live = peak = 0
        for allocated, buffer in self.events():
            live += buffer.requested_bytes if allocated else -buffer.requested_bytes
            peak = max(peak, live)
        return peak

    def events(self) -> Iterator[tuple[bool, Allocation]]:
        """(True, buffer) for each allocation and (False, buffer) for each release, in order."""
        order = [(buffer.allocated_at, True, buffer) for buffer in self.allocations]
        order += [(buffer.freed_at, False, buffer) for buffer in self.allocations if buffer.freed_at is not None]
        for _, allocated, buffer in sorted(order, key=lambda event: event[0]):
            yield allocated, buffer
