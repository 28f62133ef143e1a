"""Offsets for buffers with known lifetimes: three planners, and a checker that shares no code with them.

Greedy by size is that of `perf.memory`. The others are the C++ core of the `omnimalloc` library (1.0.0), which has
MiniMalloc's exact search (Moffitt, ASPLOS 2023) and one in the style of TelaMalloc (Maas et al., ASPLOS 2023).
`omnimalloc._cpp` is not a public API, so the version is pinned, and every answer is checked.
"""

import functools
import importlib
import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perf.memory import greedy
from perf.memory.greedy import Buffer, Placement, peak_bytes, placed
from triton_batching.terminal import Mistake

VERSION = "1.0.0"
# The paper's static orders, descending: W is the width (lifetime), T the total of the fullest section, A the area.
ORDERS = ("WAT", "TAW", "TWA")
FIRST_NODES_PER_BUFFER = 2
MINIMALLOC, TELAMALLOC = "minimalloc", "telamalloc"


def fit(buffers: Sequence[Buffer], capacity: int, timeout_s: float) -> Placement | None:
    """A placement within `capacity` bytes by MiniMalloc: its orders in turn, with ever more nodes; None without any."""
    if capacity < peak_bytes(buffers):
        return None
    deadline = time.monotonic() + timeout_s
    base = _core().Partition.from_allocations(_core_buffers(buffers))
    members = [base.reorder(order).with_bound(capacity + 1) for order in ORDERS]
    nodes = FIRST_NODES_PER_BUFFER * len(buffers)
    while time.monotonic() < deadline:
        for member in members:
            left_s = max(0.01, deadline - time.monotonic())
            if (answer := _search(member, capacity, nodes, left_s)) is not None:
                return _placement(MINIMALLOC, buffers, answer)
        nodes *= 2
    return None


def minimised(buffers: Sequence[Buffer], timeout_s: float = 3.0) -> Placement:
    """The lowest placement that bisection over `fit` finds in `timeout_s` seconds, never above TelaMalloc's."""
    best = telamalloc(buffers, timeout_s)
    low, deadline = peak_bytes(buffers), time.monotonic() + timeout_s
    share, aim = timeout_s, low
    while aim < best.height and (left_s := deadline - time.monotonic()) > 0:
        share = min(left_s, max(share / 4, 0.1))
        found = fit(buffers, aim, share)
        low, best = (aim + 1, best) if found is None else (low, found)
        aim = (low + best.height) // 2
    return best


def telamalloc(buffers: Sequence[Buffer], timeout_s: float = 3.0) -> Placement:
    """A low placement by greedy placing by contention with limited backtracking."""
    answer = _core().telamalloc_place(_core_buffers(buffers), seed=0, max_backtracks=10_000, timeout=timeout_s)
    return _placement(TELAMALLOC, buffers, answer)


OFFLINE: Mapping[str, Callable[[Sequence[Buffer]], Placement]] = {
    greedy.NAME: greedy.plan,
    TELAMALLOC: telamalloc,
    MINIMALLOC: minimised,
}


def faults(buffers: Sequence[Buffer], offsets: Sequence[int], capacity: int | None = None) -> list[str]:
    """The faults of these offsets: buffers outside `capacity`, and pairs that share time and memory.

    It cuts time at every start of a buffer and compares the offsets of the live buffers within each slice.
    """
    wrong = [
        f"buffer {buffer.id} ends at {offset + buffer.size:,}, outside 0 to {capacity}"
        for buffer, offset in zip(buffers, offsets, strict=True)
        if offset < 0 or (capacity is not None and offset + buffer.size > capacity)
    ]
    starts: dict[int, set[int]] = {}
    for number, buffer in enumerate(buffers):
        starts.setdefault(buffer.lower, set()).add(number)
    live: set[int] = set()
    for moment in sorted(starts):
        live = {number for number in live if buffers[number].upper > moment} | starts[moment]
        highest, owner = -1, -1
        for offset, number in sorted((offsets[number], number) for number in live):
            if offset < highest and (number in starts[moment] or owner in starts[moment]):
                wrong.append(f"buffers {buffers[owner].id} and {buffers[number].id} share time {moment} at {offset:,}")
            if offset + buffers[number].size > highest:
                highest, owner = offset + buffers[number].size, number
    return wrong


def _search(member: Any, capacity: int, nodes: int, timeout_s: float) -> Sequence[Any] | None:
    answer = _core().try_solve_many(
        [member],
        capacity + 1,
        nodes,
        canonical=True,
        dominance=True,
        floor_inference=True,
        monotonic_floor=True,
        decompose=True,
        timeout=timeout_s,
        num_threads=1,
    )
    return None if answer is None else list(answer.allocations)


def _core_buffers(buffers: Sequence[Buffer]) -> list[Any]:
    core = _core()
    return [core.Allocation(number, buffer.size, buffer.lower, buffer.upper) for number, buffer in enumerate(buffers)]


def _placement(planner: str, buffers: Sequence[Buffer], answer: Sequence[Any]) -> Placement:
    """The core's answer in the order of `buffers`."""
    offsets = {allocation.id: allocation.offset for allocation in answer}
    return placed(planner, buffers, (offsets[number] for number in range(len(buffers))))


@functools.cache
def _core() -> Any:
    try:
        version = importlib.metadata.version("omnimalloc")
    except importlib.metadata.PackageNotFoundError as error:
        raise Mistake('omnimalloc is not installed. Run: pip install "triton-batching[memory]".') from error
    if version != VERSION:
        raise Mistake(f"omnimalloc {version} is installed, {VERSION} is needed: its core is not a public API.")
    return importlib.import_module("omnimalloc._cpp")
