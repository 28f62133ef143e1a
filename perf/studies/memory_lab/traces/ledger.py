"""Builds a trace event by event: pairs allocations with releases and notes those that do not pair."""

from dataclasses import replace

from perf.studies.memory_lab.traces.trace import Allocation, Remark, Trace

Key = int | str


class Ledger:
    """Builds one `Trace`; counts a moment for each allocation and each matched release."""

    def __init__(self, source: str, device: str) -> None:
        self.source = source
        self.device = device
        self._allocations: list[Allocation] = []
        self._live: dict[Key, int] = {}
        self._remarks: list[Remark] = []
        self._moments = 0

    def is_live(self, key: Key) -> bool:
        """Whether `key` is allocated and not yet freed."""
        return key in self._live

    def live(self) -> list[tuple[Key, Allocation]]:
        """The live buffers with their keys, the oldest first."""
        return [(key, self._allocations[place]) for key, place in self._live.items()]

    def allocate(self, key: Key, requested: int, *, where: str, held: int | None = None, name: str = "") -> None:
        """Add a buffer. An empty one is left out; a live one of the same key is closed; both are remarked."""
        if requested <= 0:
            self.remark(where, f"allocation {key} of {requested:,} bytes is left out: it takes no memory")
            return
        if key in self._live:
            self.remark(where, f"{key} is allocated again while it is live: its release is missing")
            self._close(key)
        self._live[key] = len(self._allocations)
        self._allocations.append(
            Allocation(id=key, requested_bytes=requested, held_bytes=held, allocated_at=self._moments, name=name)
        )
        self._moments += 1

    def free(self, key: Key, *, where: str) -> bool:
        """Release a buffer; returns whether it was live. A release without an allocation is only remarked."""
        if key not in self._live:
            self.remark(where, f"{key} is freed, but its allocation is missing")
            return False
        self._close(key)
        return True

    def remark(self, where: str, text: str) -> None:
        """Note an inconsistency."""
        self._remarks.append(Remark(where=where, text=text))

    def trace(self, *, model: str = "", rows: int | None = None) -> Trace:
        """The trace so far."""
        return Trace(
            source=self.source,
            device=self.device,
            allocations=tuple(self._allocations),
            moments=self._moments,
            remarks=tuple(self._remarks),
            model=model,
            rows=rows,
        )

    def _close(self, key: Key) -> None:
        place = self._live.pop(key)
        self._allocations[place] = replace(self._allocations[place], freed_at=self._moments)
        self._moments += 1
