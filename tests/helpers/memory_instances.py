"""Instances of dynamic storage allocation whose optimum is known, and small traces."""

import random
from collections.abc import Sequence
from itertools import permutations

from perf.memory.greedy import Buffer
from perf.studies.memory_lab.traces.trace import Allocation, Trace


def guillotine(seed: int, pieces: int, *, capacity: int = 1 << 20, time: int = 1 << 12) -> tuple[Buffer, ...]:
    """A rectangle of time x capacity, cut at random from edge to edge: load and optimum are the capacity."""
    chance = random.Random(seed)
    parts = [(0, time, 0, capacity)]
    while len(parts) < pieces:
        place = max(range(len(parts)), key=lambda number: chance.random() * _area(parts[number]))
        left, right, low, high = parts[place]
        if chance.random() < 0.5 and right - left > 1:
            cut = chance.randrange(left + 1, right)
            parts[place : place + 1] = [(left, cut, low, high), (cut, right, low, high)]
        elif high - low > 1:
            cut = chance.randrange(low + 1, high)
            parts[place : place + 1] = [(left, right, low, cut), (left, right, cut, high)]
    chance.shuffle(parts)
    return tuple(
        Buffer(id=number, lower=left, upper=right, size=high - low)
        for number, (left, right, low, high) in enumerate(parts)
    )


def _area(part: tuple[int, int, int, int]) -> int:
    left, right, low, high = part
    return (right - left) * (high - low)


def exact(buffers: Sequence[Buffer]) -> int:
    """The least height: first fit in all orders, as it is optimal in the order of an optimal placement's offsets."""
    return min(_first_fit(order) for order in permutations(buffers))


def _first_fit(order: Sequence[Buffer]) -> int:
    done: list[tuple[Buffer, int]] = []
    for new in order:
        near = [(offset, offset + old.size) for old, offset in done if meet(new, old)]
        free = [at for at in (0, *(end for _, end in near)) if all(at >= e or at + new.size <= s for s, e in near)]
        done.append((new, min(free)))
    return max(offset + buffer.size for buffer, offset in done)


def meet(first: Buffer, second: Buffer) -> bool:
    """Whether the lifetimes share a moment."""
    return first.lower < second.upper and second.lower < first.upper


def trace_of(events: Sequence[str], sizes: dict[str, int], *, model: str = "") -> Trace:
    """A trace of events such as `+a` (buffer a is allocated) and `-a` (it is freed)."""
    freed = {event[1:]: moment for moment, event in enumerate(events) if event[0] == "-"}
    return Trace(
        source="test",
        device="cpu",
        model=model,
        moments=len(events),
        allocations=tuple(
            Allocation(
                id=event[1:], requested_bytes=sizes[event[1:]], allocated_at=moment, freed_at=freed.get(event[1:])
            )
            for moment, event in enumerate(events)
            if event[0] == "+"
        ),
    )


def random_trace(seed: int, buffers: int, largest: int = 1 << 20) -> Trace:
    """Random allocations and releases with sizes over all powers of two; two buffers are never freed."""

    chance = random.Random(seed)
    events: list[str] = []
    live: list[str] = []
    sizes: dict[str, int] = {}
    while len(sizes) < buffers or len(live) > 2:
        if live and (len(sizes) == buffers or chance.random() < 0.45):
            events.append("-" + live.pop(chance.randrange(len(live))))
        else:
            name = f"b{len(sizes)}"
            sizes[name] = int(2 ** chance.uniform(0, largest.bit_length() - 1))
            live.append(name)
            events.append("+" + name)
    return trace_of(events, sizes)
