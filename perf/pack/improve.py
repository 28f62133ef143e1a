"""Guided ejection search: improves a packing by emptying one bin after the other.

Nagata and Braysy, "A powerful route minimization heuristic for the vehicle routing problem with time windows",
Operations Research Letters 37 (2009). The items of one bin must go into the others. An item that fits nowhere ejects
the items that have failed least often so far. In between, items move and swap at random.
"""

import random
from itertools import combinations

from perf.pack.duty import Items, SpentError, Turns
from perf.pack.greedy import fullest

# Tries per item of the problem before a bin is given up, and random moves after each ejection.
TRIES, SHAKES = 60, 8
# An item ejects at most so many others.
MAX_EJECTED = 2


def improve(problem: Turns, bins: list[Items], *, bound: int = 1, seed: int = 0) -> list[Items]:
    """A packing with as many or fewer bins, but not below `bound`.

    Equal seeds give equal packings.
    """
    chance = random.Random(seed)
    best = _in_order(bins)
    try:
        while len(best) > bound and (better := _without_one(problem, best, chance)) is not None:
            best = _in_order(better)
    except SpentError:
        pass  # the packing so far is valid
    return best


def _in_order(bins: list[Items]) -> list[Items]:
    """The non-empty bins, in order of their smallest item."""
    return sorted(filter(None, bins), key=min)


def _without_one(problem: Turns, bins: list[Items], chance: random.Random) -> list[Items] | None:
    """A packing with one bin less, by emptying one of the emptiest bins; None if the search finds none."""

    def load(items: Items) -> float:
        return sum(problem.size(item) for item in items)

    for emptied in sorted(range(len(bins)), key=lambda at: load(bins[at]))[:3]:
        others = [items for at, items in enumerate(bins) if at != emptied]
        packing = _place(problem, others, sorted(bins[emptied], key=problem.size), chance)
        if packing is not None:
            return packing
    return None


def _place(problem: Turns, bins: list[Items], out: list[int], chance: random.Random) -> list[Items] | None:
    """The bins with the items of `out`, the last one first; None if the search fails."""
    failed = [1] * problem.count
    for _ in range(TRIES * problem.count):
        if not out:
            return bins
        item = out.pop()
        place = fullest(problem, bins, item)
        if place is not None:
            bins[place] |= {item}
            continue
        failed[item] += 1
        swap = _cheapest(problem, bins, item, failed, chance)
        if swap is None:
            return None
        at, ejected = swap
        bins[at] = (bins[at] - ejected) | {item}
        out.extend(sorted(ejected, key=problem.size))
        for _ in range(SHAKES):
            _shake(problem, bins, chance)
    return None


def _cheapest(
    problem: Turns, bins: list[Items], item: int, failed: list[int], chance: random.Random
) -> tuple[int, Items] | None:
    """The bin, and the items to eject from it, that have failed least often; a random choice among equals."""
    best: list[tuple[int, Items]] = []
    least = float("inf")
    for at, items in enumerate(bins):
        for count in range(1, MAX_EJECTED + 1):
            for ejected in combinations(sorted(items), count):
                price = sum(failed[other] for other in ejected)
                if price > least or problem.fullness((items - set(ejected)) | {item}) is None:
                    continue
                best = [*best, (at, frozenset(ejected))] if price == least else [(at, frozenset(ejected))]
                least = price
    return chance.choice(best) if best else None


def _shake(problem: Turns, bins: list[Items], chance: random.Random) -> None:
    """Move a random item to another bin, or swap two random items, if both bins still fit."""
    if len(bins) < 2:
        return
    a, b = chance.sample(range(len(bins)), 2)
    if not bins[a] or not bins[b]:
        return
    leaving, coming = chance.choice(sorted(bins[a])), chance.choice(sorted(bins[b]))
    back = frozenset({coming}) if chance.random() < 0.7 else frozenset()
    first, second = (bins[a] - {leaving}) | back, (bins[b] - back) | {leaving}
    if problem.fullness(second) is not None and (not first or problem.fullness(first) is not None):
        bins[a], bins[b] = first, second
