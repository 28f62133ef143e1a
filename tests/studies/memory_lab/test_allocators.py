"""The replayed allocators: exact addresses and regions by hand, and no overlap on random traffic."""

import random
from itertools import pairwise

import pytest

from perf.memory.allocators.device import Allocator, Device
from perf.studies.memory_lab.allocators.caching import Caching
from perf.studies.memory_lab.allocators.slab import size_class
from perf.studies.memory_lab.trial import ONLINE

MIB = 2**20


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("seed", range(5))
def test_no_allocator_overlaps_or_leaves_its_regions(name: str, seed: int) -> None:
    chance, device = random.Random(seed), Device()
    allocator = ONLINE[name](device)
    live: dict[int, int] = {}
    for _ in range(600):
        if live and chance.random() < 0.48:
            allocator.free(live_address := chance.choice(sorted(live)))
            del live[live_address]
        else:
            size = int(2 ** chance.uniform(0, 24))
            address = allocator.allocate(size)
            assert address not in live
            live[address] = size
        spans = sorted((start, start + size) for start, size in live.items())
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
        for start, stop in spans:
            assert any(base <= start and stop <= base + size for base, size in device.regions.items())
        assert device.held_bytes == sum(device.regions.values()) >= sum(live.values())
    for address in live:
        allocator.free(address)
    held_bytes = device.held_bytes
    assert held_bytes <= device.peak_held_bytes
    if name == "naive":
        assert held_bytes == 0


@pytest.mark.parametrize("name", ONLINE)
def test_an_address_that_is_not_live_is_refused(name: str) -> None:
    allocator = ONLINE[name](Device())
    address = allocator.allocate(1000)
    allocator.free(address)
    with pytest.raises(KeyError):
        allocator.free(address)


@pytest.mark.parametrize("name", [name for name in ONLINE if name != "naive"])
def test_what_is_freed_serves_the_same_requests_again_without_the_device(name: str) -> None:
    device = Device()
    allocator = ONLINE[name](device)
    keeper = allocator.allocate(4096)

    def once() -> None:
        for address in [allocator.allocate(size) for size in (1000, 5000, 70_000, 200_000)]:
            allocator.free(address)

    once()
    calls = device.calls
    once()
    assert device.calls == calls
    allocator.free(keeper)


def regions(allocator: Allocator, *sizes: int) -> list[int]:
    for size in sizes:
        allocator.allocate(size)
    return list(allocator.device.regions.values())


def test_pytorch_segments_and_splits() -> None:
    assert regions(Caching(Device()), 1, MIB, MIB + 1, 9 * MIB, 11 * MIB) == [2 * MIB, 20 * MIB, 12 * MIB]
    caching = Caching(Device())
    first = caching.allocate(1000)
    assert caching.allocate(1) == first + 1024
    large = caching.allocate(20 * MIB)
    caching.free(large)
    assert caching.allocate(19 * MIB) == large, "a remainder of 1 MiB is not split off"
    assert caching.allocate(MIB + 512) not in range(large, large + 20 * MIB)


def test_dlmalloc_grows_and_trims_its_top_and_maps_what_is_large() -> None:
    device = Device()
    best_fit = ONLINE["best fit"](device)
    first = best_fit.allocate(1000)
    assert list(device.regions.values()) == [64 * 1024]
    large = best_fit.allocate(300_000)
    assert list(device.regions.values()) == [64 * 1024, 5 * 64 * 1024]
    best_fit.free(large)
    assert device.frees == 1
    many = [best_fit.allocate(200_000) for _ in range(20)]
    assert device.regions[first] >= 4_000_000
    for address in many:
        best_fit.free(address)
    assert device.regions[first] <= 2 * MIB
    assert best_fit.allocate(100) == many[0]


def test_buddies_merge_to_the_whole_region() -> None:
    device = Device()
    buddy = ONLINE["buddy"](device)
    quarters = [buddy.allocate(300_000) for _ in range(4)]
    assert quarters == [quarters[0] + 512 * 1024 * number for number in range(4)]
    for quarter in reversed(quarters):
        buddy.free(quarter)
    assert buddy.allocate(2 * MIB) == quarters[0]
    assert list(device.regions.values()) == [2 * MIB]


def test_slab_classes_waste_at_most_a_fifth() -> None:
    assert [size_class(size) for size in (1, 256, 1024, 1025, 1281, 2048)] == [256, 256, 1024, 1280, 1536, 2048]
    assert all(size_class(size) * 4 / 5 <= size <= size_class(size) for size in range(1025, 70_000, 7))


def test_a_slab_reuses_what_was_freed_last() -> None:
    slab = ONLINE["slab"](Device())
    first, second = slab.allocate(1000), slab.allocate(1000)
    slab.free(second)
    slab.free(first)
    assert slab.allocate(900) == first
    assert slab.allocate(600) not in (first, second), "768 is another class"
