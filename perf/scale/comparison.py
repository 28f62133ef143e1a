"""Tries many targets of the rule on simulated days, and fixed counts of replicas beside them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from perf.scale.curve import ReplicaCurve, Values
from perf.scale.fleet import Conditions, Fleet, Outcome, Run
from serve.cluster.scaling import Scaling

# How the count of replicas is decided: by pending requests, or never.
PENDING, FIXED = "pending", "fixed"
# Loads whose pending requests are tried as targets, as shares of the capacity.
LOADS = (
    0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 1.0, 1.025, 1.05, 1.1
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One target on one day; `target` is the count of replicas if `rule` is `FIXED`.

    at_capacity: whether it is the number of requests in flight at a replica's capacity.
    """

    rule: str
    target: float
    day: int
    at_capacity: bool
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a share in time needs: replica hours, and the target between those that were tried."""

    replica_hours: float
    target: float


@dataclass(frozen=True, kw_only=True)
class ScaleRecord:
    """The record of simulated days of one deployment: the replica's curve, what was assumed, and all that was tried.

    trace: where the rates come from. days: how many. share: the goal of the requests in time.
    peak_per_s: the highest rate of the days.
    target_pending: the target that reaches the goal on every day; None if none does.
    """

    KIND: ClassVar[str] = "scale"
    FORMAT: ClassVar[int] = 1
    command: tuple[str, ...]
    deployment: str
    trace: str
    days: int
    step_s: float
    least: int
    most: int
    share: float
    conditions: Conditions
    curve: ReplicaCurve
    tried: tuple[Tried, ...]
    target_pending: float | None
    peak_per_s: float

    def matches(self, rule: str) -> list[Match] | None:
        """What the goal needs, day by day; None if it is missed on one of them."""
        found = [matched(self.tried, rule, number, self.share) for number in range(self.days)]
        known = [match for match in found if match is not None]
        return known if len(known) == self.days else None


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
    """Every target and count on every day; the day's number plus `seed` is the seed of what happens on it."""
    runs = []
    for day, rates in enumerate(days):
        pending = [
            Scaling(least=least, most=most, target=target, steepness=curve.steepness) for target in _targets(curve)
        ]
        peaks = (round(load * rates.max() / curve.capacity.rate_per_s) for load in LOADS)
        counts = sorted({min(most, max(least, peak)) for peak in peaks})
        fixed = [Scaling(least=count, most=count, target=float(count)) for count in counts]
        runs += [(PENDING, Run(scaling=scaling, day=day, seed=seed + day)) for scaling in pending]
        runs += [(FIXED, Run(scaling=scaling, day=day, seed=seed + day)) for scaling in fixed]
    outcomes = Fleet(curve, days, [run for _, run in runs], conditions, step_s=step_s).run(tick)
    return [
        Tried(
            rule=rule,
            target=run.scaling.target,
            day=run.day,
            at_capacity=rule == PENDING and run.scaling.target == curve.target_pending,
            outcome=outcome,
        )
        for (rule, run), outcome in zip(runs, outcomes, strict=True)
    ]


def _targets(curve: ReplicaCurve) -> list[float]:
    """The requests in flight at a replica at its capacity, and at the `LOADS`."""
    rates, pending = (curve.column(of) for of in (lambda point: point.rate_per_s, lambda point: point.pending))
    tried = {float(np.interp(load * curve.capacity.rate_per_s, rates, pending)) for load in LOADS}
    return sorted(tried | {curve.target_pending})


def matched(tried: Sequence[Tried], rule: str, day: int, share: float) -> Match | None:
    """What this share in time needs on that day: the cheapest, between two neighbouring targets.

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
    """The target that reaches the share on every day: the lowest of those that the days need."""
    found = [matched(tried, PENDING, day, share) for day in range(days)]
    known = [match.target for match in found if match is not None]
    return min(known) if len(known) == days else None
