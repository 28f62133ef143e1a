"""The allocator that follows a plan: one region from the device, and no search in an inference that does as recorded.

Event by event the program is compared with the plan; as long as they agree, an allocation costs one comparison. A
request may be smaller than planned, so the plan of the largest batch serves all smaller ones. What is not in the plan:

* an allocation too many, or too large, goes to a fallback arena, and the plan goes on;
* where an inference differs from its first allocation on, frees what the plan keeps, or begins before the one before it
  has ended, the region becomes a heap (tightest gap), and the arena serves what does not fit.

The plan starts over when nothing is live, or nothing of its region and an inference begins.

No answer ever overlaps a live one: on the plan because every event so far was the planned one, off it because the live
spans are known then.
"""

import bisect
from dataclasses import dataclass
from itertools import accumulate

from perf.memory.allocators.allocator import Allocator
from perf.memory.allocators.bfc import onnxruntime_same
from perf.memory.allocators.device import ALIGNMENT, Device, rounded
from perf.memory.allocators.plan import Plan


@dataclass(kw_only=True)
class Unplanned:
    """Allocations that were not as planned: placed in the region all the same, or by the fallback arena."""

    in_region: int = 0
    fallbacks: int = 0
    fallback_bytes: int = 0
    departures: int = 0
    """How often an inference left the plan."""


class Planned(Allocator):
    """Takes its region when it is made. `unplanned` counts what the plan did not foresee."""

    def __init__(self, device: Device, plan: Plan) -> None:
        self.device = device
        self.unplanned = Unplanned()
        base = device.malloc(plan.bytes) if plan.bytes else 0
        self._base, self._end = base, base + plan.bytes
        self._fallback = onnxruntime_same(device)
        self._in_fallback: set[int] = set()
        # One more event than planned, which nothing equals: where the cursor stands when the plan is left.
        self._sizes = (*plan.sizes, -1)
        self._addresses = (*(base + offset for offset in plan.offsets), -1)
        self._freed = tuple(
            address if size < 0 else -1 for size, address in zip(self._sizes, self._addresses, strict=True)
        )
        count = len(plan.sizes)
        self._off = count
        # From here on the plan only frees: the inference itself is over.
        self._tail = max((place + 1 for place, size in enumerate(plan.sizes) if size >= 0), default=0)
        self._next = (*range(1, count), 0) if count else ()
        # Whether nothing planned is live in front of an event.
        live = list(accumulate((1 if size >= 0 else -1 for size in plan.sizes), initial=0))
        self._idle = tuple(one == 0 for one in live)
        self._at = 0
        self._surprised = -1
        # Off the plan: the live spans of the region, by address.
        self._live: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start the plan over, or leave it where something in its region is live."""
        self._surprised = -1
        if not self._live if self._at == self._off else self._idle[self._at]:
            self._at = 0
        elif self._at != self._off:
            self._depart()

    def allocate(self, size: int) -> int:
        """The planned address; else a gap of the region or the fallback arena."""
        at = self._at
        if size <= self._sizes[at]:
            self._at = self._next[at]
            return self._addresses[at]
        return self._allocate_unplanned(size)

    def free(self, address: int) -> None:
        """Go on in the plan; else in what is live."""
        at = self._at
        if address == self._freed[at] and address >= 0:
            self._at = self._next[at]
        else:
            self._free_unplanned(address)

    def _allocate_unplanned(self, size: int) -> int:
        if self._at != self._off and (self._idle[self._at] or self._at >= self._tail):
            # One too many, or another inference? At its start, or a second time at one place, it is another one.
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
        """Leave the plan; what it has given out so far is what is live."""
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
        """The smallest sufficient gap between the live spans of the region."""
        best: tuple[int, int] | None = None
        top = self._base
        for start, end in (*self._live, (self._end, self._end)):
            gap = start - top
            if gap >= size and (best is None or gap < best[0]):
                best = (gap, top)
            top = end
        return None if best is None else best[1]
