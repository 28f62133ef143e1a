"""Fewer bins than a heuristic found, by emptying one after the other: guided ejection search.

Nagata and Braysy, "A powerful route minimization heuristic for the vehicle routing problem with time windows",
Operations Research Letters 37 (2009): the items of one bin must go into the others. One that fits nowhere is swapped
for those that have failed least often so far; failing makes an item dearer. Between, items move and swap at random.
"""

import random
from itertools import combinations

from perf.pack.heuristics import fullest
from perf.pack.problem import Items, Problem, Remembered, canonical

# Items tried before a bin is given up, for each item of the problem; so many random moves after each ejection.
TRIES, SHAKES = 60, 8
# Most items that make room for one.
EJECTED = 2


def improve(problem: Problem, bins: list[Items], *, bound: int = 1, seed: int = 0) -> list[Items]:
    """These bins or fewer, at least `bound`; the same seed gives the same."""
    remembered = Remembered(asked=problem)
    chance = random.Random(seed)
    best = canonical(bins)
    while len(best) > bound:
        found = _without_one(remembered, best, chance)
        if found is None:
            return best
        best = canonical(found)
    return best


def _without_one(problem: Problem, bins: list[Items], chance: random.Random) -> list[Items] | None:
    """All items in one bin less, trying the emptiest bins first; None where that was not found."""

    def load(one: Items) -> float:
        return sum(problem.size(item) for item in one)

    for gone in sorted(range(len(bins)), key=lambda at: load(bins[at]))[:3]:
        left = [one for at, one in enumerate(bins) if at != gone]
        found = _place(problem, left, sorted(bins[gone], key=problem.size), chance)
        if found is not None:
            return found
    return None


def _place(problem: Problem, bins: list[Items], out: list[int], chance: random.Random) -> list[Items] | None:
    """The bins with the items that are out; the last is tried first."""
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
    problem: Problem, bins: list[Items], item: int, failed: list[int], chance: random.Random
) -> tuple[int, Items] | None:
    """The bin and the few items that make room for one, those that failed least; among equals any."""
    best: list[tuple[int, Items]] = []
    least = float("inf")
    for at, one in enumerate(bins):
        for count in range(1, EJECTED + 1):
            for some in combinations(sorted(one), count):
                price = sum(failed[other] for other in some)
                if price > least or problem.fullness((one - set(some)) | {item}) is None:
                    continue
                best = [*best, (at, frozenset(some))] if price == least else [(at, frozenset(some))]
                least = price
    return chance.choice(best) if best else None


def _shake(problem: Problem, bins: list[Items], chance: random.Random) -> None:
    """Move one item to another bin, or swap two, where both still fit."""
    if len(bins) < 2:
        return
    one, other = chance.sample(range(len(bins)), 2)
    if not bins[one] or not bins[other]:
        return
    goes, comes = chance.choice(sorted(bins[one])), chance.choice(sorted(bins[other]))
    back = frozenset({comes}) if chance.random() < 0.7 else frozenset()
    first, second = (bins[one] - {goes}) | back, (bins[other] - back) | {goes}
    if problem.fullness(second) is not None and (not first or problem.fullness(first) is not None):
        bins[one], bins[other] = first, second
