"""The `omnimalloc` library (1.0.0): a C++ core for MiniMalloc's exact search and for a TelaMalloc-style one.

`omnimalloc._cpp` is not a public API, so the version is pinned and every answer goes through `offline.checker`.
MiniMalloc: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning" (ASPLOS
2023). TelaMalloc: Maas et al. (ASPLOS 2023), whose own code is not public.
"""

import functools
import importlib
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perf.memory.offline.buffer import Buffer, Placement, load, placed
from triton_batching.terminal import Failure, Mistake

VERSION = "1.0.0"
# The paper's static orders, descending: W width (lifetime), T total of the fullest section, A area.
ORDERS = ("WAT", "TAW", "TWA")
FIRST_NODES_PER_BUFFER = 2
FIRST_SEARCH_S = 0.1
MINIMALLOC, TELAMALLOC = "minimalloc", "telamalloc"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a search for one capacity ended with: a placement, or none. `impossible`: none exists, else time ran out."""

    placement: Placement | None
    impossible: bool = False


def fit(buffers: Sequence[Buffer], capacity: int, timeout_s: float = 60.0) -> Verdict:
    """MiniMalloc: search for a placement within `capacity` bytes, the orders by turns, each round with twice the nodes.

    The core says "none" alike for an exhausted search, a node limit and a timeout, so a first search without a node
    limit is what can prove that there is none: it then ends before its time.
    """
    if not buffers:
        return Verdict(placement=placed(MINIMALLOC, (), ()))
    if capacity < load(buffers):
        return Verdict(placement=None, impossible=True)
    deadline = time.monotonic() + timeout_s
    base = _core().Partition.from_allocations(_given(buffers))
    members = [base.reorder(order).with_bound(capacity + 1) for order in ORDERS]
    first_s = min(FIRST_SEARCH_S, timeout_s)
    started = time.monotonic()
    found = _searched(members[0], capacity, None, first_s)
    if found is None and time.monotonic() - started < 0.9 * first_s:
        return Verdict(placement=None, impossible=True)
    nodes = FIRST_NODES_PER_BUFFER * len(buffers)
    while found is None and time.monotonic() < deadline:
        for member in members:
            found = found or _searched(member, capacity, nodes, max(0.01, deadline - time.monotonic()))
        nodes *= 2
    return Verdict(placement=None if found is None else _placement(MINIMALLOC, buffers, found))


def _searched(member: Any, capacity: int, nodes: int | None, timeout_s: float) -> Sequence[Any] | None:
    found = _core().try_solve_many(
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
    return None if found is None else list(found.allocations)


def minimised(buffers: Sequence[Buffer], timeout_s: float = 3.0, start: Placement | None = None) -> Placement:
    """The lowest height that bisection over `fit` finds in `timeout_s`, at least as good as `start`."""
    best = start or telamalloc(buffers, timeout_s)
    low, deadline = load(buffers), time.monotonic() + timeout_s
    share = timeout_s
    aim = low
    while aim < best.height and (left := deadline - time.monotonic()) > 0:
        share = min(left, max(share / 4, 0.1))
        found = fit(buffers, aim, share).placement
        if found is not None:
            best = found
        else:
            low = aim + 1
        aim = (low + best.height) // 2
    return best


def telamalloc(buffers: Sequence[Buffer], timeout_s: float = 3.0, seed: int = 0) -> Placement:
    """TelaMalloc-style: greedy by contention, with limited backtracking; minimises the height."""
    core = _core()
    if not buffers:
        return placed(TELAMALLOC, buffers, ())
    found = core.telamalloc_place(_given(buffers), seed=seed, max_backtracks=10_000, timeout=timeout_s)
    return _placement(TELAMALLOC, buffers, found)


def installed() -> str | None:
    """The version of the library, None without it."""
    try:
        return importlib.metadata.version("omnimalloc")
    except importlib.metadata.PackageNotFoundError:
        return None


def _given(buffers: Sequence[Buffer]) -> list[Any]:
    core = _core()
    return [core.Allocation(number, one.size, one.lower, one.upper) for number, one in enumerate(buffers)]


def _placement(planner: str, buffers: Sequence[Buffer], found: Sequence[Any]) -> Placement:
    """Offsets in our order; the core numbers are ours, its order is its own."""
    offsets = {one.id: one.offset for one in found}
    if sorted(offsets) != list(range(len(buffers))) or None in offsets.values():
        raise Failure(f"omnimalloc placed {len(offsets)} of {len(buffers)} buffers.")
    return placed(planner, buffers, (offsets[number] for number in range(len(buffers))))


@functools.cache
def _core() -> Any:
    found = installed()
    if found is None:
        raise Mistake('omnimalloc is not installed. Run: pip install "triton-batching[memory]".')
    if found != VERSION:
        raise Mistake(f"omnimalloc {found} is installed, {VERSION} is needed: its core is not a public API.")
    return importlib.import_module("omnimalloc._cpp")
