"""The fewest bins with a proof: a dynamic program over all subsets for up to 11 items, OR-Tools for more."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from perf.pack import solver
from perf.pack.heuristics import best_fit_decreasing
from perf.pack.improve import improve
from perf.pack.problem import Items, Plain, Problem

# The dynamic program takes 3^n steps: 0.2 s for 11 items.
MAX_ITEMS = 11
# More sets take longer to list than the solver's time limit.
MAX_SETS = 100_000
TIME_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A packing, and a lower bound on the number of bins of all packings."""

    bins: tuple[Items, ...]
    bound: int

    @property
    def proven(self) -> bool:
        """Whether the packing is proven to be optimal."""
        return len(self.bins) == self.bound


def fewest(problem: Problem, *, time_limit_s: float = TIME_LIMIT_S) -> Answer:
    """The fewest bins, or the best packing and bound within the time limit.

    For more than 11 items it is the improved packing, unless that is above the lower bound and the solver finds one
    with fewer bins. Raises `Mistake` if it needs OR-Tools, which is not installed, or if too many sets fit into one
    bin.
    """
    if problem.count <= MAX_ITEMS:
        bins = subsets(problem)
        return Answer(bins=tuple(bins), bound=len(bins))
    start = improve(problem, best_fit_decreasing(problem), bound=problem.least, checks=sys.maxsize)
    if len(start) == problem.least:
        return Answer(bins=tuple(start), bound=problem.least)
    fewer = len(start) - 1
    if isinstance(problem, Plain):
        better, bound = solver.assign(problem.sizes, problem.capacity, fewer, time_limit_s)
    else:
        better, bound = solver.cover(problem.count, _maximal(problem), problem.least, fewer, time_limit_s)
    return Answer(bins=tuple(better or start), bound=bound)


def subsets(problem: Problem) -> list[Items]:
    """The fewest bins by dynamic programming over subsets, O(3^n); the last bin of a subset has its lowest item."""
    everything = (1 << problem.count) - 1
    fitting = _fitting(problem)
    fewest, last = [0] * (everything + 1), [0] * (everything + 1)
    for whole in range(1, everything + 1):
        low = whole & -whole
        rest = part = whole ^ low
        fewest[whole] = problem.count + 1
        while True:
            if fitting[part | low] and fewest[rest ^ part] + 1 < fewest[whole]:
                fewest[whole], last[whole] = fewest[rest ^ part] + 1, part | low
            if not part:
                break
            part = (part - 1) & rest
    bins, left = [], everything
    while left:
        bins.append(_items(last[left]))
        left ^= last[left]
    return bins


def _fitting(problem: Problem) -> list[bool]:
    """Whether each subset fits; it can fit only if all its subsets with one item less do."""
    fits = [True] * (1 << problem.count)
    for mask in range(1, 1 << problem.count):
        parts = (mask & ~(1 << item) for item in range(problem.count) if mask >> item & 1)
        fits[mask] = all(fits[part] for part in parts) and problem.fullness(_items(mask)) is not None
    return fits


def _items(mask: int) -> Items:
    return frozenset(item for item in range(mask.bit_length()) if mask >> item & 1)


def _maximal(problem: Problem) -> list[Items]:
    """The sets that fit and are maximal; every bin is a subset of one of them."""
    return [items for items in _sets(problem) if _is_maximal(problem, items)]


def _is_maximal(problem: Problem, items: Items) -> bool:
    others = (item for item in range(problem.count) if item not in items)
    return all(problem.fullness(items | {item}) is None for item in others)


def _sets(problem: Problem) -> Iterator[Items]:
    level: list[Items] = [frozenset()]
    seen = 0
    while level:
        level = [
            items | {item}
            for items in level
            for item in range(max(items, default=-1) + 1, problem.count)
            if problem.fullness(items | {item}) is not None
        ]
        seen += len(level)
        if seen > MAX_SETS:
            raise solver.TooLargeError(
                f"more than {MAX_SETS} sets of the {problem.count} models fit on one device, so the exact answer is "
                "out of reach. Use --algorithm improved."
            )
        yield from level
