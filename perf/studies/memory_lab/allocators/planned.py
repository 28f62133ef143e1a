"""An allocator that follows an offset plan: one region of the device, and no search while events are as planned.

It compares each event with the plan; a planned allocation costs one comparison. A request may be smaller than planned,
so the plan of the largest batch serves all smaller ones. Other events:

* An extra allocation, or one that is too large, goes to a fallback arena, and the plan continues.
* An inference leaves the plan if its first allocation differs, if it frees a buffer that the plan keeps, or if it
  begins before the previous inference has ended. The region then becomes a heap (tightest gap), and the arena serves
  requests that do not fit.

The plan starts over when nothing is live, or when an inference begins and nothing in the region is live.

Live buffers never overlap: on the plan all events so far were planned, and off the plan the live spans are known.
"""

import bisect
from dataclasses import dataclass
from itertools import accumulate

from perf.memory.allocators.bfc import onnxruntime_same
from perf.memory.allocators.device import ALIGNMENT, Allocator, Device, rounded
from perf.studies.memory_lab.allocators.plan import Plan


@dataclass(kw_only=True)
class Unplanned:
    """Counts of unplanned allocations, served by the region or by the fallback arena.

    `departures` counts the inferences that left the plan.
    """

    in_region: int = 0
    fallbacks: int = 0
    fallback_bytes: int = 0
    departures: int = 0


class Planned(Allocator):
    """Takes its region from the device at construction. `unplanned` counts allocations that the plan lacks."""

    def __init__(self, device: Device, plan: Plan) -> None:
        self.device = device
        self.unplanned = Unplanned()
        base = device.malloc(plan.bytes) if plan.bytes else 0
        self._base, self._end = base, base + plan.bytes
        self._fallback = onnxruntime_same(device)
        self._in_fallback: set[int] = set()
        # One more event, which no request equals: the position of the cursor off the plan.
        self._sizes = (*plan.sizes, -1)
        self._addresses = (*(base + offset for offset in plan.offsets), -1)
        self._freed = tuple(
            address if size < 0 else -1 for size, address in zip(self._sizes, self._addresses, strict=True)
        )
        count = len(plan.sizes)
        self._off = count
        # From this event on the plan only frees.
        self._tail = max((place + 1 for place, size in enumerate(plan.sizes) if size >= 0), default=0)
        self._next = (*range(1, count), 0) if count else ()
        # For each event, whether no planned buffer is live before it.
        live_counts = accumulate((1 if size >= 0 else -1 for size in plan.sizes), initial=0)
        self._idle = tuple(count == 0 for count in live_counts)
        self._at = 0
        self._surprised = -1
        # Off the plan: the live spans of the region, by address.
        self._live: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start the plan over, or leave it if a buffer in its region is live."""
        self._surprised = -1
        if not self._live if self._at == self._off else self._idle[self._at]:
            self._at = 0
        elif self._at != self._off:
            self._depart()

    def allocate(self, size: int) -> int:
        """The planned address, else a gap in the region, else an address of the fallback arena."""
        at = self._at
        if size <= self._sizes[at]:
            self._at = self._next[at]
            return self._addresses[at]
        return self._allocate_unplanned(size)

    def free(self, address: int) -> None:
        """Release the buffer that the plan releases next, else any live one; raises `KeyError`."""
        at = self._at
        if address == self._freed[at] and address >= 0:
            self._at = self._next[at]
        else:
            self._free_unplanned(address)

    def _allocate_unplanned(self, size: int) -> int:
        if self._at != self._off and (self._idle[self._at] or self._at >= self._tail):
            # At the plan's start, or for the second time at one event, this is another inference, else an extra buffer.
            if self._at in (0, self._surprised):
                self._depart()
            self._surprised = self._at
        if self._at == self._off:
            gap = self._tightest(rounded(size, ALIGNMENT))
            if gap is not None:
                bisect.insort(self._live, (gap, gap + rounded(size, ALIGNMENT)))
                self.unplanned.in_region += 1
                return gap
        address = self._fallback.allocate(size)
        self._in_fallback.add(address)
        self.unplanned.fallbacks += 1
        self.unplanned.fallback_bytes += size
        return address

    def _free_unplanned(self, address: int) -> None:
        if address in self._in_fallback:
            self._in_fallback.remove(address)
            self._fallback.free(address)
        else:
            if self._at != self._off:
                self._depart()
            place = bisect.bisect_left(self._live, (address, 0))
            if place == len(self._live) or self._live[place][0] != address:
                raise KeyError(address)
            del self._live[place]
        if self._at == self._off and not self._live and not self._in_fallback:
            self._at = 0

    def _depart(self) -> None:
        """Leave the plan; the live spans follow from its events so far."""
        live: dict[int, int] = {}
        for size, address in zip(self._sizes[: self._at], self._addresses, strict=False):
            if size < 0:
                del live[address]
            else:
                live[address] = address + size
        self._live = sorted(live.items())
        self._at = self._off
        self.unplanned.departures += 1

    def _tightest(self, size: int) -> int | None:
        """The address of the smallest sufficient gap in the region; None if there is none."""
        best: tuple[int, int] | None = None
        top = self._base
        for start, end in (*self._live, (self._end, self._end)):
            gap = start - top
            if gap >= size and (best is None or gap < best[0]):
                best = (gap, top)
            top = end
        return None if best is None else best[1]
