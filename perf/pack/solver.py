"""OR-Tools' CP-SAT solver, an optional extra (`pip install triton-batching[pack]`): bin packing with a proven bound."""

from collections.abc import Sequence
from typing import Any

from export.terminal import Mistake
from perf.pack.problem import Items, canonical

WORKERS = 2


class TooLargeError(Mistake):
    """The exact answer was asked for where it is out of reach."""


def assign(sizes: Sequence[int], capacity: int, time_limit_s: float) -> tuple[list[Items], int]:
    """Sizes into the fewest bins of `capacity`, and the proven lower bound.

    The assignment model: an item opens a bin with a number of at most its own, and bins are used in order.
    """
    cp = _module()
    model = cp.CpModel()
    count = len(sizes)
    used = [model.NewBoolVar(f"bin {at}") for at in range(count)]
    inside = {(item, at): model.NewBoolVar(f"{item} in {at}") for item in range(count) for at in range(item + 1)}
    for item in range(count):
        model.AddExactlyOne(inside[item, at] for at in range(item + 1))
    for at in range(count):
        model.Add(sum(sizes[i] * inside[i, at] for i in range(at, count)) <= capacity * used[at])
    for at in range(1, count):
        model.AddImplication(used[at], used[at - 1])
    model.Add(sum(used) * capacity >= sum(sizes))
    model.Minimize(sum(used))
    solved = _solve(cp, model, time_limit_s)
    bins = [frozenset(i for i in range(at, count) if solved.Value(inside[i, at])) for at in range(count)]
    return canonical(bins), _bound(solved)


def cover(count: int, sets: Sequence[Items], time_limit_s: float) -> tuple[list[Items], int]:
    """The fewest of these sets that cover the items, each item then in the first of its sets, and the lower bound."""
    cp = _module()
    model = cp.CpModel()
    taken = [model.NewBoolVar(f"set {at}") for at in range(len(sets))]
    for item in range(count):
        model.AddBoolOr([taken[at] for at, one in enumerate(sets) if item in one])
    model.Minimize(sum(taken))
    solved = _solve(cp, model, time_limit_s)
    placed: set[int] = set()
    bins = []
    for at, one in enumerate(sets):
        if solved.Value(taken[at]):
            bins.append(one - placed)
            placed |= one
    return canonical(bins), _bound(solved)


def _solve(cp: Any, model: Any, time_limit_s: float) -> Any:
    solved = cp.CpSolver()
    solved.parameters.max_time_in_seconds = time_limit_s
    solved.parameters.num_workers = WORKERS
    if solved.Solve(model) not in (cp.OPTIMAL, cp.FEASIBLE):
        raise TooLargeError(f"CP-SAT found no packing within {time_limit_s:g} s. Give it more: --time-limit.")
    return solved


def _bound(solved: Any) -> int:
    # The bound of a whole number of bins, rounded up against the solver's own rounding.
    return int(-(-(solved.BestObjectiveBound() - 1e-6) // 1))


def _module() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise Mistake(
            f"the exact answer for more than 11 models needs OR-Tools ({error}). "
            "Install it: pip install 'triton-batching[pack]', or use --algorithm improved."
        ) from error
    return cp_model
