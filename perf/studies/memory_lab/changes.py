"""Changes of a recorded inference, to test how a plan serves an inference that differs."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from perf.studies.memory_lab.traces.trace import Allocation, Trace


def scaled(trace: Trace, factor: float) -> Trace:
    """Another batch size: each buffer is `factor` times as large."""
    return _with(trace, [_sized(buffer, factor * buffer.requested_bytes) for buffer in trace.allocations])


def reshaped(trace: Trace, seed: int = 0) -> Trace:
    """Other shapes: each buffer is 0.5 to 1.5 times as large."""
    rng = random.Random(seed)
    return _with(
        trace, [_sized(buffer, rng.uniform(0.5, 1.5) * buffer.requested_bytes) for buffer in trace.allocations]
    )


def reordered(trace: Trace, seed: int = 0) -> Trace:
    """Another order: neighbouring events of different buffers are swapped, about one pair in four."""
    rng = random.Random(seed)
    moments = list(range(trace.moments))
    owner = {moment: number for number, buffer in enumerate(trace.allocations) for moment in _moments(buffer)}
    for first, second in pairwise(range(trace.moments)):
        if rng.random() < 0.25 and owner.get(first) != owner.get(second) and moments[first] == first:
            moments[first], moments[second] = moments[second], moments[first]
    new = {old: new for new, old in enumerate(moments)}
    return _with(trace, [_moved(buffer, new) for buffer in trace.allocations])


def extended(trace: Trace) -> Trace:
    """Extra buffers: after each fifth allocation a tenth of the live peak is allocated and freed at once."""
    extra: list[Allocation] = []
    new: dict[int, int] = {}
    moment = count = 0
    for allocated, buffer in trace.events():
        new[buffer.allocated_at if allocated else buffer.freed_at or 0] = moment
        moment += 1
        count += allocated
        if allocated and count % 5 == 3:
            size = max(1, trace.live_peak_bytes // 10)
            extra.append(
                Allocation(id=f"extra {moment}", requested_bytes=size, allocated_at=moment, freed_at=moment + 1)
            )
            moment += 2
    return replace(_with(trace, [*extra, *(_moved(buffer, new) for buffer in trace.allocations)]), moments=moment)


CHANGES: dict[str, Callable[[Trace], Trace]] = {
    "the same": lambda trace: trace,
    "half the batch": lambda trace: scaled(trace, 0.5),
    "twice the batch": lambda trace: scaled(trace, 2.0),
    "other shapes": reshaped,
    "other order": reordered,
    "extra buffers": extended,
}


def _moments(buffer: Allocation) -> tuple[int, ...]:
    return (buffer.allocated_at,) if buffer.freed_at is None else (buffer.allocated_at, buffer.freed_at)


def _sized(buffer: Allocation, size: float) -> Allocation:
    return replace(buffer, requested_bytes=max(1, round(size)))


def _moved(buffer: Allocation, new: dict[int, int]) -> Allocation:
    freed_at = None if buffer.freed_at is None else new[buffer.freed_at]
    return replace(buffer, allocated_at=new[buffer.allocated_at], freed_at=freed_at)


def _with(trace: Trace, allocations: list[Allocation]) -> Trace:
    return replace(trace, allocations=tuple(sorted(allocations, key=lambda buffer: buffer.allocated_at)), remarks=())
