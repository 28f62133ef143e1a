"""First fit and best fit, in order of the items' numbers or the largest first.

In plain bin packing, first fit and best fit decreasing need at most 11/9 OPT + 6/9 bins, best fit online 1.7 OPT.
"""

from collections.abc import Iterable, Sequence

from perf.pack.problem import Items, Problem, by_size


def first_fit(problem: Problem, order: Iterable[int]) -> list[Items]:
    """Put each item, in this order, into the first bin that it fits."""
    bins: list[Items] = []
    for item in order:
        place = next((at for at, items in enumerate(bins) if problem.fullness(items | {item}) is not None), None)
        _put(bins, place, item)
    return bins


def best_fit(problem: Problem, order: Iterable[int]) -> list[Items]:
    """Put each item, in this order, into the bin that is fullest with it."""
    bins: list[Items] = []
    for item in order:
        _put(bins, fullest(problem, bins, item), item)
    return bins


def fullest(problem: Problem, bins: Sequence[Items], item: int) -> int | None:
    """The index of the bin that is fullest with the item; None if the item fits into no bin."""
    fits = [(full, -at) for at, items in enumerate(bins) if (full := problem.fullness(items | {item})) is not None]
    return -max(fits)[1] if fits else None


def _put(bins: list[Items], place: int | None, item: int) -> None:
    if place is None:
        bins.append(frozenset({item}))
    else:
        bins[place] |= {item}


def first_fit_decreasing(problem: Problem) -> list[Items]:
    """First fit, the largest item first."""
    return first_fit(problem, by_size(problem))


def best_fit_decreasing(problem: Problem) -> list[Items]:
    """Best fit, the largest item first."""
    return best_fit(problem, by_size(problem))


def best_fit_online(problem: Problem) -> list[Items]:
    """Best fit in order of the items' numbers."""
    return best_fit(problem, range(problem.count))
