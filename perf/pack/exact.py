"""The fewest bins, proven: a dynamic program over all subsets, up to 11 items; OR-Tools beyond."""

from collections.abc import Iterator
from dataclasses import dataclass

from perf.pack import solver
from perf.pack.heuristics import best_fit_decreasing
from perf.pack.improve import improve
from perf.pack.problem import Items, Plain, Problem, Remembered

# The program takes 3^n steps: 0.2 s for 11 items.
MOST = 11
# Bins as columns of a set cover; more than that take longer to list than the solver takes to give up.
MOST_SETS = 100_000
TIME_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Bins, and the number that no packing is below; `proven` where they are equal."""

    bins: tuple[Items, ...]
    bound: int

    @property
    def proven(self) -> bool:
        """Whether no packing has fewer bins."""
        return len(self.bins) == self.bound


def fewest(problem: Problem, *, time_limit_s: float = TIME_LIMIT_S) -> Answer:
    """The fewest bins, or the best and the bound that the solver got to within its time.

    Beyond 11 items it is the improved packing, unless the solver finds one with fewer bins; the solver is not asked
    where none can have fewer.

    Raises `Mistake` without OR-Tools where there are more than 11 items, and where too many sets fit into one bin.
    """
    if problem.count <= MOST:
        bins = subsets(problem)
        return Answer(bins=tuple(bins), bound=len(bins))
    asked = Remembered(asked=problem)
    start = improve(asked, best_fit_decreasing(asked), bound=problem.least)
    if len(start) == problem.least:
        return Answer(bins=tuple(start), bound=problem.least)
    fewer = len(start) - 1
    if isinstance(problem, Plain):
        found, bound = solver.assign(problem.sizes, problem.capacity, fewer, time_limit_s)
    else:
        found, bound = solver.cover(problem.count, _maximal(asked), problem.least, fewer, time_limit_s)
    return Answer(bins=tuple(found or start), bound=bound)


def subsets(problem: Problem) -> list[Items]:
    """The fewest bins by dynamic programming over subsets, O(3^n); each subset's last bin holds its lowest item."""
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
    found, left = [], everything
    while left:
        found.append(_items(last[left]))
        left ^= last[left]
    return found


def _fitting(problem: Problem) -> list[bool]:
    """Which subsets fit; one is asked about only where it fits without each of its items."""
    fits = [True] * (1 << problem.count)
    for mask in range(1, 1 << problem.count):
        parts = (mask & ~(1 << item) for item in range(problem.count) if mask >> item & 1)
        fits[mask] = all(fits[part] for part in parts) and problem.fullness(_items(mask)) is not None
    return fits


def _items(mask: int) -> Items:
    return frozenset(item for item in range(mask.bit_length()) if mask >> item & 1)


def _maximal(problem: Problem) -> list[Items]:
    """The sets that fit and to which nothing can be added: one of them covers whatever a bin holds."""
    return [one for one in _sets(problem) if _is_maximal(problem, one)]


def _is_maximal(problem: Problem, items: Items) -> bool:
    others = (item for item in range(problem.count) if item not in items)
    return all(problem.fullness(items | {item}) is None for item in others)


def _sets(problem: Problem) -> Iterator[Items]:
    level: list[Items] = [frozenset()]
    seen = 0
    while level:
        level = [
            one | {item}
            for one in level
            for item in range(max(one, default=-1) + 1, problem.count)
            if problem.fullness(one | {item}) is not None
        ]
        seen += len(level)
        if seen > MOST_SETS:
            raise solver.TooLargeError(
                f"more than {MOST_SETS} sets of the {problem.count} models fit on one device, so the exact answer is "
                "out of reach. Use --algorithm improved."
            )
        yield from level
