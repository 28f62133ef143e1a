"""The checker of placements, which shares no code with the planners.

It cuts time at every start of a buffer and compares the offsets of the live buffers within each slice.
"""

from perf.memory.greedy import Buffer, Placement


def faults(placement: Placement, buffers: tuple[Buffer, ...], capacity: int | None = None) -> list[str]:
    """The faults of `placement` as an answer for `buffers` within `capacity` bytes; empty if it is valid."""
    if placement.buffers != buffers or len(placement.offsets) != len(buffers):
        return [f"{len(placement.offsets)} offsets for {len(buffers)} buffers, or not for these buffers"]
    outside = [
        f"buffer {buffer.id} ends at {offset + buffer.size:,}, outside 0 to {capacity}"
        for buffer, offset in zip(buffers, placement.offsets, strict=True)
        if offset < 0 or (capacity is not None and offset + buffer.size > capacity)
    ]
    return outside + _overlaps(placement)


def _overlaps(placement: Placement) -> list[str]:
    """Pairs of buffers that share time and memory."""
    starts: dict[int, list[int]] = {}
    for number, buffer in enumerate(placement.buffers):
        starts.setdefault(buffer.lower, []).append(number)
    live: set[int] = set()
    overlaps = []
    for time in sorted(starts):
        live = {number for number in live if placement.buffers[number].upper > time} | set(starts[time])
        spans = sorted((placement.offsets[number], number) for number in live)
        highest, owner = -1, -1
        for offset, number in spans:
            if offset < highest and (number in starts[time] or owner in starts[time]):
                below, above = placement.buffers[owner], placement.buffers[number]
                overlaps.append(f"buffers {below.id} and {above.id} share time {time} and offset {offset:,}")
            end = offset + placement.buffers[number].size
            if end > highest:
                highest, owner = end, number
    return overlaps
