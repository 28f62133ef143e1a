"""Ways in which an inference departs from the recorded one, to see what a plan does then."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from perf.memory.trace.trace import Allocation, Trace


def scaled(trace: Trace, factor: float) -> Trace:
    """Another batch size: every buffer `factor` times as large."""
    return _with(
        trace, [replace(one, requested_bytes=max(1, round(factor * one.requested_bytes))) for one in trace.allocations]
    )


def reshaped(trace: Trace, seed: int = 0) -> Trace:
    """Other shapes: every buffer between half and one and a half times as large."""
    chance = random.Random(seed)
    sizes = [max(1, round(chance.uniform(0.5, 1.5) * one.requested_bytes)) for one in trace.allocations]
    return _with(
        trace, [replace(one, requested_bytes=size) for one, size in zip(trace.allocations, sizes, strict=True)]
    )


def reordered(trace: Trace, seed: int = 0) -> Trace:
    """Another order: neighbouring events of different buffers are swapped, about one pair in four."""
    chance = random.Random(seed)
    moments = list(range(trace.moments))
    owner = {moment: number for number, one in enumerate(trace.allocations) for moment in _moments(one)}
    for one, other in pairwise(range(trace.moments)):
        if chance.random() < 0.25 and owner.get(one) != owner.get(other) and moments[one] == one:
            moments[one], moments[other] = moments[other], moments[one]
    at = {was: now for now, was in enumerate(moments)}
    found = [
        replace(one, allocated_at=at[one.allocated_at], freed_at=None if one.freed_at is None else at[one.freed_at])
        for one in trace.allocations
    ]
    return _with(trace, sorted(found, key=lambda one: one.allocated_at))


def extended(trace: Trace) -> Trace:
    """Something more: after one allocation in five a buffer of a tenth of the live peak comes and goes at once."""
    found: list[Allocation] = []
    now: dict[int, int] = {}
    moment = count = 0
    for allocated, one in trace.events():
        now[one.allocated_at if allocated else one.freed_at or 0] = moment
        moment += 1
        count += allocated
        if allocated and count % 5 == 3:
            size = max(1, trace.live_peak_bytes // 10)
            found.append(
                Allocation(id=f"more {moment}", requested_bytes=size, allocated_at=moment, freed_at=moment + 1)
            )
            moment += 2
    found += [
        replace(one, allocated_at=now[one.allocated_at], freed_at=None if one.freed_at is None else now[one.freed_at])
        for one in trace.allocations
    ]
    return replace(_with(trace, sorted(found, key=lambda one: one.allocated_at)), moments=moment)


CHANGES: dict[str, Callable[[Trace], Trace]] = {
    "the same": lambda trace: trace,
    "half the batch": lambda trace: scaled(trace, 0.5),
    "twice the batch": lambda trace: scaled(trace, 2.0),
    "other shapes": reshaped,
    "other order": reordered,
    "extra buffers": extended,
}


def _moments(one: Allocation) -> tuple[int, ...]:
    return (one.allocated_at,) if one.freed_at is None else (one.allocated_at, one.freed_at)


def _with(trace: Trace, allocations: list[Allocation]) -> Trace:
    return replace(trace, allocations=tuple(allocations), remarks=())
