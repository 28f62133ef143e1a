"""Which candidates to measure first, from which most is learned, and in what order to try the others."""

from collections.abc import Callable, Sequence

from perf.records.candidate import Candidate
from perf.tune.goal import Goal
from perf.tune.pooled_trials import PooledTrials
from perf.tune.screening import Screened
from perf.tune.space import Parallelism

# Few, so that more are chosen with what the first trials show (on invented models, 2 found better ones than 3).
ENTRANTS = 2
# A candidate expected to be worse than the best by more than this is not promising.
HOPELESS = 0.15


def entrants(screened: Sequence[Screened], goal: Goal, default: Candidate) -> list[Candidate]:
    """Return the default and the best promising candidates; `screened` is best first.

    They are of different kinds, and the second has another parallelism than the first: how executions share the cores
    is what the simulation knows least.
    """
    best = screened[0]
    promising = [each for each in screened if goal.met(each) and not goal.beats(best, each, by=HOPELESS)]
    by_kind: dict[object, Screened] = {}
    for each in promising or screened:
        by_kind.setdefault(_kind(each.candidate), each)
    ordered = [*by_kind.values(), *(each for each in screened if each not in by_kind.values())]
    others = [each.candidate for each in ordered if each.candidate != default]
    apart = [each for each in others if Parallelism.of(each) != Parallelism.of(others[0])]
    return [default, *dict.fromkeys([*others[:1], *apart[:1], *others[1:]])][: 1 + ENTRANTS]


def untried(screened: Sequence[Screened], measured: Sequence[PooledTrials], goal: Goal) -> list[Screened]:
    """Return the candidates that were not measured, best first, and last those that are likely to exceed a limit."""
    known = set(map(key, measured))
    new = [each for each in screened if (each.candidate, str(each.traffic)) not in known]
    over = likely_over(measured, goal)
    return sorted(new, key=lambda each: over(each.candidate))


def likely_over(measured: Sequence[PooledTrials], goal: Goal) -> Callable[[Candidate], bool]:
    """Return whether a candidate has no fewer instances and threads than one that exceeded a limit."""
    over = {Parallelism.of(pooled.candidate) for pooled in measured if not goal.fits(pooled)}
    return lambda candidate: any(Parallelism.of(candidate).covers(one) for one in over)


def key(pooled: PooledTrials) -> tuple[Candidate, str]:
    """Return what was measured: the candidate and the load."""
    return pooled.candidate, pooled.trials[0].load


def _kind(candidate: Candidate) -> object:
    return Parallelism.of(candidate), candidate.max_batch_size, candidate.delay_us > 0, bool(candidate.preferred)
