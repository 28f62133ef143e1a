"""First fit and best fit, in the items' own order or the largest first: the algorithms that everyone knows.

In the plain form first and best fit decreasing need at most 11/9 OPT + 6/9 bins, best fit online 1.7 OPT.
"""

from collections.abc import Iterable, Sequence

from perf.pack.problem import Items, Problem, by_size


def first_fit(problem: Problem, order: Iterable[int]) -> list[Items]:
    """Each item into the first bin that takes it, in order."""
    bins: list[Items] = []
    for item in order:
        place = next((at for at, one in enumerate(bins) if problem.fullness(one | {item}) is not None), None)
        _put(bins, place, item)
    return bins


def best_fit(problem: Problem, order: Iterable[int]) -> list[Items]:
    """Each item into the bin that is fullest with it, in order."""
    bins: list[Items] = []
    for item in order:
        _put(bins, fullest(problem, bins, item), item)
    return bins


def fullest(problem: Problem, bins: Sequence[Items], item: int) -> int | None:
    """The bin that is fullest with the item; None where it fits into none."""
    found = [(full, -at) for at, one in enumerate(bins) if (full := problem.fullness(one | {item})) is not None]
    return -max(found)[1] if found else None


def _put(bins: list[Items], place: int | None, item: int) -> None:
    if place is None:
        bins.append(frozenset({item}))
    else:
        bins[place] |= {item}


def first_fit_decreasing(problem: Problem) -> list[Items]:
    """First fit, the largest first."""
    return first_fit(problem, by_size(problem))


def best_fit_decreasing(problem: Problem) -> list[Items]:
    """Best fit, the largest first."""
    return best_fit(problem, by_size(problem))


def best_fit_online(problem: Problem) -> list[Items]:
    """Best fit in the items' own order."""
    return best_fit(problem, range(problem.count))
