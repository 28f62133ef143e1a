"""The allocator that follows a plan: what it holds, what it asks, and that a changed inference never overlaps."""

import random
from dataclasses import replace

import pytest
from memory_instances import guillotine, random_trace, trace_of

from perf.memory import greedy
from perf.memory.allocators.device import Device
from perf.memory.greedy import peak_bytes
from perf.studies.memory_lab import changes, omni
from perf.studies.memory_lab.allocators.plan import Plan, best_placement, buffers_of, plan
from perf.studies.memory_lab.allocators.planned import Planned, Unplanned
from perf.studies.memory_lab.checker import faults
from perf.studies.memory_lab.replay import overlaps, replay
from perf.studies.memory_lab.traces.trace import Trace

KIB = 1024
SIZES = {"a": 4 * KIB, "b": 8 * KIB, "c": 4 * KIB, "d": 2 * KIB}
# a and b overlap in time, b and c, c and d: 12 KiB live at most.
CHAIN = trace_of(["+a", "+b", "-a", "+c", "-b", "+d", "-c", "-d"], SIZES)


def serving(trace: Trace = CHAIN) -> Planned:
    return Planned(Device(), plan(trace))


def inference(allocator: Planned, events: str, sizes: dict[str, int], hint: bool = True) -> dict[str, int]:
    """Run `+a -a` and the like; the addresses by name."""
    addresses = {}
    if hint:
        allocator.begin()
    for event in events.split():
        if event[0] == "+":
            addresses[event[1]] = allocator.allocate(sizes[event[1]])
        else:
            allocator.free(addresses[event[1]])
    return addresses


AS_PLANNED = "+a +b -a +c -b +d -c -d"


def test_an_inference_as_recorded_takes_one_device_call_and_the_load() -> None:
    allocator = serving()
    first = inference(allocator, AS_PLANNED, SIZES)
    assert inference(allocator, AS_PLANNED, SIZES) == first
    assert allocator.device.calls == 1
    assert allocator.device.held_bytes == CHAIN.live_peak_bytes == 12 * KIB
    assert first["c"] == first["a"], "c starts when a has ended"
    assert allocator.unplanned == Unplanned()


def test_a_smaller_batch_uses_the_same_plan() -> None:
    allocator = serving()
    inference(allocator, AS_PLANNED, {name: size // 4 for name, size in SIZES.items()})
    assert allocator.unplanned == Unplanned()


def test_an_extra_buffer_falls_back_and_the_plan_goes_on() -> None:
    allocator = serving()
    sizes = SIZES | {"x": 100 * KIB}
    inference(allocator, "+a +b -a +x +c -b -x +d -c -d", sizes)
    assert allocator.unplanned == Unplanned(fallbacks=1, fallback_bytes=100 * KIB)
    inference(allocator, AS_PLANNED, SIZES)
    assert allocator.unplanned.fallbacks == 1


def test_an_extra_buffer_while_nothing_is_live_is_one_too_many_the_first_time() -> None:
    pause = trace_of(["+a", "-a", "+b", "-b"], SIZES)
    allocator = serving(pause)
    sizes = SIZES | {"x": 100 * KIB, "y": 100 * KIB}
    for _ in range(2):
        inference(allocator, "+a -a +x +b -b -x", sizes)
    assert allocator.unplanned == Unplanned(fallbacks=2, fallback_bytes=200 * KIB)
    inference(allocator, "+a -a +x +y +b -b -x -y", sizes)
    assert allocator.unplanned == Unplanned(in_region=1, fallbacks=4, fallback_bytes=400 * KIB, departures=1)


def test_a_larger_batch_takes_the_region_as_a_heap_and_then_the_plan_starts_over() -> None:
    allocator = serving()
    inference(allocator, AS_PLANNED, {name: 2 * size for name, size in SIZES.items()})
    # a (8 KiB) fits the region of 12, b (16) does not; c (8) fits where a was, and d (4) beside it.
    assert allocator.unplanned == Unplanned(in_region=3, fallbacks=1, fallback_bytes=16 * KIB, departures=1)
    inference(allocator, AS_PLANNED, SIZES)
    assert allocator.unplanned.departures == 1


def test_another_order_leaves_the_plan_without_an_overlap() -> None:
    allocator = serving()
    inference(allocator, "+a +b -b +c -a +d -c -d", SIZES)
    assert allocator.unplanned == Unplanned(in_region=2, departures=1)
    inference(allocator, AS_PLANNED, SIZES)
    assert allocator.unplanned.departures == 1


def test_what_the_trace_never_frees_is_freed_before_the_plan_starts_over() -> None:
    kept = trace_of(["+a", "+b", "-a"], SIZES)
    allocator = serving(kept)
    for _ in range(3):
        inference(allocator, "+a +b -a -b", SIZES)
    assert allocator.unplanned == Unplanned()
    # An answer that is kept over the next inference: that one finds a place for a, and none for b.
    first = inference(allocator, "+a +b -a", SIZES)
    second = inference(allocator, "+a +b -a", SIZES)
    assert second["b"] != first["b"]
    assert allocator.unplanned == Unplanned(in_region=1, fallbacks=1, fallback_bytes=8 * KIB, departures=1)


def test_a_buffer_that_stays_in_the_arena_does_not_keep_the_plan_from_starting_over() -> None:
    allocator = serving()
    keeper = allocator.allocate(100 * KIB)
    for _ in range(2):
        inference(allocator, AS_PLANNED, SIZES)
    allocator.free(keeper)
    inference(allocator, AS_PLANNED, SIZES)
    assert allocator.unplanned == Unplanned(fallbacks=1, fallback_bytes=100 * KIB, departures=1)


def test_the_plan_starts_over_without_a_hint_once_nothing_is_live() -> None:
    allocator = serving()
    inference(allocator, "+a +b -b -a", SIZES)
    inference(allocator, AS_PLANNED, SIZES, hint=False)
    assert allocator.unplanned.departures == 1


@pytest.mark.parametrize("events", ["+a -a -a", "+a +b -a -a", "+a +b -b -b"])
def test_an_address_that_is_not_live_is_refused(events: str) -> None:
    allocator = serving()
    with pytest.raises(KeyError):
        inference(allocator, events, SIZES)


def test_an_empty_plan_is_all_fallback() -> None:
    empty = Plan(sizes=(), offsets=(), placement=plan(trace_of(["+a"], SIZES)).placement)
    allocator = Planned(Device(), empty)
    inference(allocator, AS_PLANNED, {name: 2 * size for name, size in SIZES.items()})
    assert allocator.unplanned.fallbacks + allocator.unplanned.in_region == 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("change", changes.CHANGES)
def test_no_changed_inference_overlaps_or_fails(change: str, seed: int) -> None:
    trace = random_trace(seed, 60)
    allocator = serving(trace)
    other = changes.CHANGES[change](trace)
    for replayed_trace in (trace, other, other, trace, other, trace):
        replayed = replay(replayed_trace, allocator)
        assert overlaps(replayed) == []
        regions = replayed.regions.items()
        assert all(
            any(base <= p.address and p.address + p.size <= base + s for base, s in regions) for p in replayed.placed
        )
    counted = replace(allocator.unplanned)
    replay(trace, allocator)
    assert allocator.unplanned == counted, "the recorded inference is as planned again"


@pytest.mark.parametrize("seed", range(10))
def test_random_traffic_never_overlaps(seed: int) -> None:
    chance = random.Random(seed)
    allocator = serving(random_trace(seed, 30, largest=1 << 14))
    live: dict[int, int] = {}
    for _ in range(1500):
        if chance.random() < 0.02:
            allocator.begin()
        if live and chance.random() < 0.5:
            address = chance.choice(sorted(live))
            del live[address]
            allocator.free(address)
        else:
            size = int(2 ** chance.uniform(0, 14))
            address = allocator.allocate(size)
            assert all(address + size <= start or address >= start + other for start, other in live.items())
            live[address] = size


@pytest.mark.parametrize("seed", range(5))
def test_changes_keep_every_buffer_in_order(seed: int) -> None:
    trace = random_trace(seed, 40)
    for name, change in changes.CHANGES.items():
        other = change(trace)
        moments = [
            m
            for allocation in other.allocations
            for m in (allocation.allocated_at, allocation.freed_at)
            if m is not None
        ]
        assert len(set(moments)) == len(moments) == other.moments, name
        assert all(
            allocation.freed_at is None or allocation.allocated_at < allocation.freed_at
            for allocation in other.allocations
        ), name
    assert changes.scaled(trace, 2).live_peak_bytes == 2 * trace.live_peak_bytes
    assert changes.reordered(trace).allocations != trace.allocations
    assert len(changes.extended(trace).allocations) == 40 + 8


@pytest.mark.parametrize("seed", range(5))
def test_the_planner_for_a_trace_is_valid_and_near_the_bound(seed: int) -> None:
    trace = random_trace(seed, 80)
    buffers = buffers_of(trace, 256)
    placement = best_placement(buffers, 1.0)
    assert faults(placement, buffers) == []
    assert trace.live_peak_bytes <= peak_bytes(buffers) <= placement.height <= greedy.plan(buffers).height


def test_a_trace_without_omnimalloc_is_planned_by_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = guillotine(3, 60)
    assert greedy.plan(buffers).height > peak_bytes(buffers)
    monkeypatch.setattr(omni, "installed", lambda: None)
    assert best_placement(buffers).planner == greedy.NAME
