"""OR-Tools' CP-SAT solver, an optional extra (`pip install triton-batching[pack]`): bin packing with a proven bound."""

from collections.abc import Sequence
from typing import Any

from perf.pack.problem import Items, canonical
from triton_batching.terminal import Mistake

WORKERS = 2


class TooLargeError(Mistake):
    """The problem is too large for the exact algorithm."""


def assign(sizes: Sequence[int], capacity: int, most: int, time_limit_s: float) -> tuple[list[Items] | None, int]:
    """A packing of `sizes` into the fewest, and at most `most`, bins of `capacity`, and a proven lower bound.

    The packing is None if there is none, which proves a bound of `most` + 1, or if none was found in time. It is the
    assignment model, the largest item first: an item opens a bin whose number is at most its own, and bins are used in
    order.
    """
    cp = _module()
    model = cp.CpModel()
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    least = -(-sum(sizes) // capacity)
    inside = {(at, bin): model.NewBoolVar("") for at in range(len(order)) for bin in range(min(at + 1, most))}
    used = [model.NewBoolVar("") for _ in range(most)]
    for at in range(len(order)):
        model.AddExactlyOne(inside[at, bin] for bin in range(min(at + 1, most)))
    for bin in range(most):
        taken = sum(sizes[order[at]] * inside[at, bin] for at in range(bin, len(order)))
        model.Add(taken <= capacity * used[bin])
        if bin < least:
            model.Add(used[bin] == 1)
    for bin in range(1, most):
        model.AddImplication(used[bin], used[bin - 1])
    model.Minimize(sum(used))
    solved, status = _solve(cp, model, time_limit_s)
    if status == cp.INFEASIBLE:
        return None, most + 1
    if status == cp.UNKNOWN:
        return None, least
    bins = [
        frozenset(order[at] for at in range(bin, len(order)) if solved.Value(inside[at, bin])) for bin in range(most)
    ]
    return canonical(bins), max(least, _bound(solved))


def cover(
    count: int, sets: Sequence[Items], least: int, most: int, time_limit_s: float
) -> tuple[list[Items] | None, int]:
    """The fewest, and at most `most`, of these sets that cover all items, and a lower bound of at least `least`.

    Each item is then in the first of its sets. The packing is None as in `assign`.
    """
    cp = _module()
    model = cp.CpModel()
    taken = [model.NewBoolVar("") for _ in sets]
    for item in range(count):
        model.AddBoolOr([taken[at] for at, items in enumerate(sets) if item in items])
    model.Add(sum(taken) <= most)
    model.Add(sum(taken) >= least)
    model.Minimize(sum(taken))
    solved, status = _solve(cp, model, time_limit_s)
    if status == cp.INFEASIBLE:
        return None, most + 1
    if status == cp.UNKNOWN:
        return None, least
    placed: set[int] = set()
    bins = []
    for at, items in enumerate(sets):
        if solved.Value(taken[at]):
            bins.append(items - placed)
            placed |= items
    return canonical(bins), max(least, _bound(solved))


def _solve(cp: Any, model: Any, time_limit_s: float) -> tuple[Any, Any]:
    solved = cp.CpSolver()
    solved.parameters.max_time_in_seconds = time_limit_s
    solved.parameters.num_workers = WORKERS
    return solved, solved.Solve(model)


def _bound(solved: Any) -> int:
    # The number of bins is an integer; the tolerance is for the solver's rounding.
    return int(-(-(solved.BestObjectiveBound() - 1e-6) // 1))


def _module() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise Mistake(
            f"--algorithm exact needs OR-Tools for more than 11 models ({error}). "
            "Install it: pip install 'triton-batching[pack]', or use --algorithm improved."
        ) from error
    return cp_model
