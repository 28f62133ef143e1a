"""Compares rules at the same share in time: every rule is tried at many targets, and the replica hours are compared."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.scale.curve import ReplicaCurve, Values
from perf.scale.fleet import Conditions, Fleet, Outcome, Run
from perf.scale.rules import LOADS, PENDING, RULES, Rule, published, steepness, targets
from serve.cluster.scaling import Scaling

# A count of replicas that never changes, beside the rules.
FIXED = Rule(name="fixed", title="a fixed count of replicas", source="no scaling", unit=" replicas")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One target of a rule on one day. is_published: whether it is the target that the rule's source gives."""

    rule: str
    target: float
    day: int
    is_published: bool
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a rule needs for a share in time: replica hours, and the target between those that were tried."""

    replica_hours: float
    target: float


def compare(
    curve: ReplicaCurve,
    days: Sequence[Values],
    conditions: Conditions,
    *,
    least: int,
    most: int,
    step_s: float = 1.0,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> list[Tried]:
    """Every rule at every target on every day; the day's number plus `seed` is the seed of what happens on it."""
    tried = [(rule, target) for rule in RULES.values() for target in targets(rule, curve)]
    runs = [
        Run(
            rule=rule,
            scaling=Scaling(least=least, most=most, target=target, steepness=steepness(rule, curve)),
            day=day,
            seed=seed + day,
        )
        for day in range(len(days))
        for rule, target in tried
    ]
    runs += [
        Run(rule=FIXED, scaling=Scaling(least=n, most=n, target=float(n)), day=day, seed=seed + day)
        for day, rates in enumerate(days)
        for n in sorted(
            {min(most, max(least, round(load * rates.max() / curve.capacity.rate_per_s))) for load in LOADS}
        )
    ]
    outcomes = Fleet(curve, days, runs, conditions, step_s=step_s).run(tick)
    return [
        Tried(
            rule=run.rule.name,
            target=run.scaling.target,
            day=run.day,
            is_published=run.rule is not FIXED and run.scaling.target == published(run.rule, curve),
            outcome=outcome,
        )
        for run, outcome in zip(runs, outcomes, strict=True)
    ]


def matched(tried: Sequence[Tried], rule: str, day: int, share: float) -> Match | None:
    """What the rule needs on that day for this share in time: the cheapest, between two neighbouring targets.

    None if no target that was tried reaches the share.
    """
    points = sorted(
        ((run.target, run.outcome) for run in tried if (run.rule, run.day) == (rule, day)), key=lambda point: point[0]
    )
    best = min((point for point in points if point[1].share >= share), key=_hours, default=None)
    if best is None:
        return None
    found = Match(replica_hours=best[1].replica_hours, target=best[0])
    for one, other in itertools.pairwise(points):
        enough, less = sorted((one, other), key=lambda point: -point[1].share)
        if enough[1].share >= share > less[1].share and enough[1].replica_hours > less[1].replica_hours:
            part = (enough[1].share - share) / (enough[1].share - less[1].share)
            hours = enough[1].replica_hours + part * (less[1].replica_hours - enough[1].replica_hours)
            if hours < found.replica_hours:
                found = Match(replica_hours=hours, target=enough[0] + part * (less[0] - enough[0]))
    return found


def _hours(point: tuple[float, Outcome]) -> float:
    return point[1].replica_hours


def recommended(tried: Sequence[Tried], share: float, days: int) -> float | None:
    """The target of our rule that reaches the share on every day: the lowest of those that the days need."""
    found = [matched(tried, PENDING.name, day, share) for day in range(days)]
    known = [match.target for match in found if match is not None]
    return min(known) if len(known) == days else None
