"""The ledger that every reader keeps: pairs what is allocated with what is freed, and notes what does not pair."""

from perf.memory.trace.trace import Allocation, Remark, Trace

Key = int | str


class Ledger:
    """Builds one `Trace`; moments are counted here, one per allocation and one per matched release."""

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
        """What is live now, the oldest first."""
        return [(key, self._allocations[place]) for key, place in self._live.items()]

    def allocate(self, key: Key, requested: int, *, where: str, held: int | None = None, name: str = "") -> None:
        """A new buffer, if it has any bytes; a live one of the same key is taken as freed unseen, and remarked."""
        if requested <= 0:
            self.remark(where, f"allocation {key} of {requested:,} bytes is left out: it takes no memory")
            return
        if key in self._live:
            self.remark(where, f"{key} is allocated again while it is live; its release was not recorded")
            self._close(key)
        self._live[key] = len(self._allocations)
        self._allocations.append(
            Allocation(id=key, requested_bytes=requested, held_bytes=held, allocated_at=self._moments, name=name)
        )
        self._moments += 1

    def free(self, key: Key, *, where: str) -> bool:
        """Whether `key` was live; a release without an allocation is remarked and otherwise ignored."""
        if key not in self._live:
            self.remark(where, f"{key} is freed, but its allocation was not recorded")
            return False
        self._close(key)
        return True

    def remark(self, where: str, text: str) -> None:
        """Note what does not add up."""
        self._remarks.append(Remark(where=where, text=text))

    def trace(self, *, model: str = "", rows: int | None = None) -> Trace:
        """What was recorded."""
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
        one = self._allocations[place]
        self._allocations[place] = Allocation(
            id=one.id,
            requested_bytes=one.requested_bytes,
            held_bytes=one.held_bytes,
            allocated_at=one.allocated_at,
            freed_at=self._moments,
            name=one.name,
        )
        self._moments += 1
