"""The `omnimalloc` library (1.0.0): a C++ core with MiniMalloc's exact search and a search in the style of TelaMalloc.

`omnimalloc._cpp` is not a public API, so the version is pinned and `checker` checks every answer.
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

from perf.memory.greedy import Buffer, Placement, peak_bytes, placed
from triton_batching.terminal import Failure, Mistake

VERSION = "1.0.0"
# The paper's static orders, descending: W is the width (lifetime), T the total of the fullest section, A the area.
ORDERS = ("WAT", "TAW", "TWA")
FIRST_NODES_PER_BUFFER = 2
FIRST_SEARCH_S = 0.1
MINIMALLOC, TELAMALLOC = "minimalloc", "telamalloc"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a search. `placement` is None if time ran out or, with `impossible`, if none exists."""

    placement: Placement | None
    impossible: bool = False


def fit(buffers: Sequence[Buffer], capacity: int, timeout_s: float = 60.0) -> Verdict:
    """Search for a placement within `capacity` bytes with MiniMalloc: its orders in turn, with ever more nodes.

    The core returns None for an exhausted search, a node limit and a timeout alike. So the first search has no node
    limit: if it ends before its timeout, no placement exists.
    """
    if not buffers:
        return Verdict(placement=placed(MINIMALLOC, (), ()))
    if capacity < peak_bytes(buffers):
        return Verdict(placement=None, impossible=True)
    deadline = time.monotonic() + timeout_s
    base = _core().Partition.from_allocations(_core_buffers(buffers))
    members = [base.reorder(order).with_bound(capacity + 1) for order in ORDERS]
    first_s = min(FIRST_SEARCH_S, timeout_s)
    started = time.monotonic()
    answer = _search(members[0], capacity, None, first_s)
    if answer is None and time.monotonic() - started < 0.9 * first_s:
        return Verdict(placement=None, impossible=True)
    nodes = FIRST_NODES_PER_BUFFER * len(buffers)
    while answer is None and time.monotonic() < deadline:
        for member in members:
            answer = answer or _search(member, capacity, nodes, max(0.01, deadline - time.monotonic()))
        nodes *= 2
    return Verdict(placement=None if answer is None else _placement(MINIMALLOC, buffers, answer))


def _search(member: Any, capacity: int, nodes: int | None, timeout_s: float) -> Sequence[Any] | None:
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


def minimised(buffers: Sequence[Buffer], timeout_s: float = 3.0, start: Placement | None = None) -> Placement:
    """The lowest placement that bisection over `fit` finds in `timeout_s` seconds, never above `start`."""
    best = start or telamalloc(buffers, timeout_s)
    low, deadline = peak_bytes(buffers), time.monotonic() + timeout_s
    share = timeout_s
    aim = low
    while aim < best.height and (left := deadline - time.monotonic()) > 0:
        share = min(left, max(share / 4, 0.1))
        placement = fit(buffers, aim, share).placement
        if placement is not None:
            best = placement
        else:
            low = aim + 1
        aim = (low + best.height) // 2
    return best


def telamalloc(buffers: Sequence[Buffer], timeout_s: float = 3.0, seed: int = 0) -> Placement:
    """A low placement by a search in the style of TelaMalloc: greedy by contention with limited backtracking."""
    core = _core()
    if not buffers:
        return placed(TELAMALLOC, buffers, ())
    answer = core.telamalloc_place(_core_buffers(buffers), seed=seed, max_backtracks=10_000, timeout=timeout_s)
    return _placement(TELAMALLOC, buffers, answer)


def installed() -> str | None:
    """The version of the installed library; None if it is not installed."""
    try:
        return importlib.metadata.version("omnimalloc")
    except importlib.metadata.PackageNotFoundError:
        return None


def _core_buffers(buffers: Sequence[Buffer]) -> list[Any]:
    core = _core()
    return [core.Allocation(number, buffer.size, buffer.lower, buffer.upper) for number, buffer in enumerate(buffers)]


def _placement(planner: str, buffers: Sequence[Buffer], answer: Sequence[Any]) -> Placement:
    """The core's answer in the order of `buffers`."""
    offsets = {allocation.id: allocation.offset for allocation in answer}
    if sorted(offsets) != list(range(len(buffers))) or None in offsets.values():
        raise Failure(f"omnimalloc placed {len(offsets)} of {len(buffers)} buffers.")
    return placed(planner, buffers, (offsets[number] for number in range(len(buffers))))


@functools.cache
def _core() -> Any:
    version = installed()
    if version is None:
        raise Mistake('omnimalloc is not installed. Run: pip install "triton-batching[memory]".')
    if version != VERSION:
        raise Mistake(f"omnimalloc {version} is installed, {VERSION} is needed: its core is not a public API.")
    return importlib.import_module("omnimalloc._cpp")
