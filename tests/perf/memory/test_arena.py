"""The simulated arena and device: exact addresses and regions, computed by hand."""

import pytest

from perf.memory.allocators.bfc import NEXT_POWER_OF_TWO, BfcArena, onnxruntime_power, onnxruntime_same, tensorflow
from perf.memory.allocators.device import Allocator, Device, OutOfMemory

MIB = 2**20


def regions(allocator: Allocator, *sizes: int) -> list[int]:
    for size in sizes:
        allocator.allocate(size)
    return list(allocator.device.regions.values())


def test_tensorflow_grows_from_2_mib_by_doubling() -> None:
    # 3 MiB doubles 2 to 4, and as that was a doubling the next region is 4 again; where none was needed it doubles.
    assert regions(tensorflow(Device()), 3 * MIB) == [4 * MIB]
    assert regions(tensorflow(Device()), MIB, 3 * MIB) == [2 * MIB, 4 * MIB]
    assert regions(tensorflow(Device()), 3 * MIB, 3 * MIB) == [4 * MIB, 4 * MIB]
    assert regions(tensorflow(Device()), 3 * MIB, 3 * MIB, 3 * MIB) == [4 * MIB, 4 * MIB, 8 * MIB]


def test_onnxruntime_grows_from_1_mib_by_doubling_or_by_the_request() -> None:
    assert regions(onnxruntime_power(Device()), 1000) == [MIB]
    assert regions(onnxruntime_power(Device()), 1000, 5 * MIB) == [MIB, 8 * MIB]
    assert regions(onnxruntime_same(Device()), 1000, 5 * MIB) == [1024, 5 * MIB]


def test_bfc_splits_at_twice_the_request_and_takes_the_lowest_of_equals() -> None:
    arena = onnxruntime_same(Device())
    first, _, second, _ = (arena.allocate(size) for size in (1024, 256, 1024, 256))
    arena.free(second)
    arena.free(first)
    assert arena.allocate(768) == first
    assert arena.in_use_bytes == 1024 + 256 + 256, "768 is more than half of 1024: the chunk is not split"
    assert arena.allocate(512) == second
    assert arena.in_use_bytes == 1024 + 256 + 512 + 256
    assert arena.allocate(512) == second + 512
    assert arena.peak_in_use_bytes == 1024 + 256 + 1024 + 256


def test_bfc_coalesces_both_neighbours_but_never_across_regions() -> None:
    arena = onnxruntime_power(Device())
    parts = [arena.allocate(256 * 1024) for _ in range(4)]
    for part in (parts[0], parts[2], parts[1], parts[3]):
        arena.free(part)
    assert arena.allocate(MIB) == parts[0]
    arena.allocate(MIB)
    assert list(arena.device.regions.values()) == [MIB, 2 * MIB]


def test_onnxruntime_reserves_weights_outside_its_bins_and_keeps_its_first_region_when_it_shrinks() -> None:
    arena = onnxruntime_power(Device())
    weights = arena.reserve(1000)
    assert (arena.held_bytes, arena.in_use_bytes) == (1000, 1000)
    for address in [arena.allocate(MIB), arena.allocate(2 * MIB)]:
        arena.free(address)
    arena.free(weights)
    arena.shrink()
    assert list(arena.device.regions.values()) == [MIB]
    arena.allocate(2 * MIB)
    assert list(arena.device.regions.values()) == [MIB, 2 * MIB], "growth starts again at 2 MiB"


def test_an_arena_takes_what_its_limit_leaves_and_what_the_device_has() -> None:
    limited = BfcArena(Device(), NEXT_POWER_OF_TWO, limit_bytes=6 * MIB)
    assert regions(limited, MIB, 3 * MIB) == [MIB, 4 * MIB]
    with pytest.raises(OutOfMemory):
        limited.allocate(2 * MIB)
    # 8 MiB are refused; 0.9 of it, rounded up to 256, until it fits into the 6 that the device has.
    device = Device(limit_bytes=6 * MIB)
    cut = 8 * MIB
    while cut > 6 * MIB:
        cut = -(-int(cut * 0.9) // 256) * 256
    assert regions(onnxruntime_power(device), 5 * MIB) == [cut]
    with pytest.raises(OutOfMemory):
        tensorflow(Device(limit_bytes=MIB)).allocate(2 * MIB)
