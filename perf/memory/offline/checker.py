"""The checker of placements, which shares no code with any planner.

It paints: time is cut at every start and end, and within each slice the offsets of the live buffers are compared.
"""

from dataclasses import dataclass

from perf.memory.offline.buffer import Buffer, Placement


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a placement."""

    text: str


def faults(placement: Placement, given: tuple[Buffer, ...], capacity: int | None = None) -> list[Fault]:
    """Everything that makes `placement` no answer for the buffers `given` (within `capacity`); empty when it is one."""
    if placement.buffers != given or len(placement.offsets) != len(given):
        return [Fault(text=f"{len(placement.offsets)} offsets for {len(given)} buffers, or not for these buffers")]
    found = []
    for one, offset in zip(given, placement.offsets, strict=True):
        if offset < 0 or (capacity is not None and offset + one.size > capacity):
            found.append(Fault(text=f"buffer {one.id} ends at {offset + one.size:,}, outside 0 to {capacity}"))
    return found + _overlaps(placement)


def _overlaps(placement: Placement) -> list[Fault]:
    """Pairs that share time and memory, none where there is none: the live buffers of a slice of time, by offset."""
    starts: dict[int, list[int]] = {}
    for number, one in enumerate(placement.buffers):
        starts.setdefault(one.lower, []).append(number)
    live: set[int] = set()
    found = []
    for time in sorted(starts):
        live = {number for number in live if placement.buffers[number].upper > time} | set(starts[time])
        spans = sorted((placement.offsets[number], number) for number in live)
        highest, owner = -1, -1
        for offset, number in spans:
            if offset < highest and (number in starts[time] or owner in starts[time]):
                one, other = placement.buffers[owner], placement.buffers[number]
                found.append(Fault(text=f"buffers {one.id} and {other.id} share time {time} and offset {offset:,}"))
            end = offset + placement.buffers[number].size
            if end > highest:
                highest, owner = end, number
    return found
