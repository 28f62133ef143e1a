"""A trace: all allocations and releases of one allocator, in order; the ledger that builds it, and its file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from triton_batching import whole_file
from triton_batching.terminal import Mistake

Count = Annotated[int, msgspec.Meta(ge=0)]
ADVICE = "Record a trace: python -m perf.studies.memory_lab.record MODEL."


class Allocation(msgspec.Struct, frozen=True, array_like=True):
    """One buffer, live over the half-open range of moments [`allocated_at`, `freed_at`).

    A moment is the index of an event in the trace. `freed_at` is None if the trace has no release. `held_bytes` is the
    number of bytes that the recording allocator reserved for `requested_bytes`; None if the tool does not say it.
    """

    id: int | str
    requested_bytes: Count
    held_bytes: Count | None
    allocated_at: Count
    freed_at: Count | None = None
    name: str = ""


class Remark(msgspec.Struct, frozen=True):
    """An inconsistency in the file; `where` is its line or event."""

    where: str
    text: str


class Trace(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="memory trace"):
    """All allocations on `device` (the name of an allocator or device) in order, over `moments` events.

    `source` names the tool that wrote the file, `remarks` its inconsistencies. `model` and `rows` (the batch size) are
    empty or None if unknown.
    """

    format: Literal[1] = 1
    source: str
    device: str
    model: str = ""
    rows: int | None = None
    moments: Count
    remarks: tuple[Remark, ...] = ()
    allocations: tuple[Allocation, ...]

    @property
    def unmatched(self) -> tuple[Allocation, ...]:
        """The allocations that are never freed."""
        return tuple(buffer for buffer in self.allocations if buffer.freed_at is None)

    @property
    def live_peak_bytes(self) -> int:
        """The most requested bytes live at once: the lower bound of every allocator."""
        live = peak = 0
        for allocated, number in self.events():
            size = self.allocations[number].requested_bytes
            live += size if allocated else -size
            peak = max(peak, live)
        return peak

    def events(self) -> Iterator[tuple[bool, int]]:
        """(True, number of a buffer) for each allocation and (False, number) for each release, in order."""
        order = [(buffer.allocated_at, True, number) for number, buffer in enumerate(self.allocations)]
        order += [
            (buffer.freed_at, False, number)
            for number, buffer in enumerate(self.allocations)
            if buffer.freed_at is not None
        ]
        for _, allocated, number in sorted(order):
            yield allocated, number


class Ledger:
    """Builds one `Trace`: pairs allocations with releases; counts a moment for each of them, and notes what is odd."""

    def __init__(self, source: str, device: str) -> None:
        self.source, self.device = source, device
        self._allocations: list[Allocation] = []
        self._live: dict[int | str, int] = {}
        self._remarks: list[Remark] = []
        self._moments = 0

    def live(self) -> dict[int | str, int]:
        """The requested bytes of the live buffers by their keys, the oldest first."""
        return {key: self._allocations[place].requested_bytes for key, place in self._live.items()}

    def allocate(self, key: int | str, requested: int, *, where: str, held: int | None = None, name: str = "") -> None:
        """Add a buffer. An empty one is left out; a live one of the same key is closed; both are remarked."""
        if requested <= 0:
            self.remark(where, f"allocation {key} of {requested:,} bytes is left out: it takes no memory")
            return
        if key in self._live:
            self.remark(where, f"{key} is allocated again while it is live: its release is missing")
            self._close(key)
        self._live[key] = len(self._allocations)
        self._allocations.append(Allocation(key, requested, held, self._moments, None, name))
        self._moments += 1

    def free(self, key: int | str, *, where: str) -> None:
        """Release a buffer; a release without an allocation is only remarked."""
        if key in self._live:
            self._close(key)
        else:
            self.remark(where, f"{key} is freed, but its allocation is missing")

    def remark(self, where: str, text: str) -> None:
        """Note an inconsistency."""
        self._remarks.append(Remark(where, text))

    def trace(self) -> Trace:
        """The trace so far."""
        return Trace(
            source=self.source,
            device=self.device,
            moments=self._moments,
            remarks=tuple(self._remarks),
            allocations=tuple(self._allocations),
        )

    def _close(self, key: int | str) -> None:
        place = self._live.pop(key)
        self._allocations[place] = msgspec.structs.replace(self._allocations[place], freed_at=self._moments)
        self._moments += 1


def write(trace: Trace, path: Path) -> Path:
    """Write a trace as JSON, without facts about the machine."""
    return whole_file.write(path, msgspec.json.encode(trace).decode() + "\n")


def parse(data: bytes, origin: str) -> Trace:
    """The trace in a file's bytes; raises `Mistake`."""
    try:
        return msgspec.json.decode(data, type=Trace)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Mistake(f"{origin}: not a memory trace of format 1 ({error}). {ADVICE}") from error
