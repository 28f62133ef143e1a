"""How many replicas a deployment needs, by the rules of Kubernetes' horizontal pod autoscaler, as one pure function.

    desired = ceil(ready x (signal / target) ^ (1 / steepness))

The signal is a mean over the ready replicas. Ours is pending requests, those that wait and those that run, and its
target is the pending count of one replica at its capacity. With a steepness of 1 this is Kubernetes' own formula, which
takes the signal as proportional to the load. Pending requests grow faster than the load near the capacity: with four
times the target, a replica may have 1.4 times the load it can take. The steepness says how fast; `python -m perf.scale`
finds it and the target.

Source: kubernetes 1.33, pkg/controller/podautoscaler, `calcPlainMetricReplicas` in replica_calculator.go and
`normalizeDesiredReplicasWithBehaviors` in horizontal.go; described in
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
"""

import math
from dataclasses import dataclass
from enum import StrEnum

# How often Kubernetes decides (--horizontal-pod-autoscaler-sync-period).
SYNC_S = 15.0
TOLERANCE = 0.1
# Digits of a replica count that are kept before it is rounded up: 10 x 1.1 is 11, not 12.
DIGITS = 9


class Unit(StrEnum):
    """What a policy counts: replicas, or per cent of the replicas at the start of its period."""

    PODS = "Pods"
    PERCENT = "Percent"


class Select(StrEnum):
    """Which policy of several holds: the one that allows the largest change, the smallest, or no change at all."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The largest change in `period_s` seconds: `value` replicas or per cent."""

    unit: Unit
    value: int
    period_s: float


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast replicas may be added, or removed.

    stabilisation_s: the most careful recommendation of this time holds: the lowest for adding, the highest for
        removing. tolerance: a signal this close to its target, as a share of it, changes nothing.
    """

    stabilisation_s: float
    policies: tuple[Policy, ...]
    select: Select = Select.MAX
    tolerance: float = TOLERANCE


# The defaults of Kubernetes.
UP = Pace(
    stabilisation_s=0.0,
    policies=(
        Policy(unit=Unit.PODS, value=4, period_s=15.0),
        Policy(unit=Unit.PERCENT, value=100, period_s=15.0),
    ),
)
DOWN = Pace(stabilisation_s=300.0, policies=(Policy(unit=Unit.PERCENT, value=100, period_s=15.0),))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The rules of one deployment: from `least` to `most` replicas, and the signal per ready replica to hold.

    `least` is 1 or more, `most` not below it, and `target` above 0.
    steepness: the signal grows as the load to this power; 1 or more.
    """

    least: int
    most: int
    target: float
    steepness: float = 1.0
    up: Pace = UP
    down: Pace = DOWN


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is known of the replicas now.

    replicas: how many are wanted so far, those that start included and those that drain left out.
    ready: those that are ready and whose signal is known. missing: those that are ready, with no signal.
    signal: the mean over the `ready` ones.
    """

    replicas: int
    ready: int
    signal: float
    missing: int = 0

    @property
    def starting(self) -> int:
        """Replicas that are not ready yet."""
        return max(0, self.replicas - self.ready - self.missing)


@dataclass(frozen=True, kw_only=True)
class History:
    """What `scale` remembers: its recommendations and its changes, each as (seconds, replicas), the oldest first."""

    recommendations: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()


def scale(scaling: Scaling, reading: Reading, history: History, now_s: float) -> tuple[int, History]:
    """The replicas to have from now on, and the history for the next call.

    The history counts on the answer being carried out. `now_s` is any clock that never goes back, the same in each
    call. Without a ready replica whose signal is known, the count stays as it is.
    """
    current = reading.replicas
    if not scaling.least <= current <= scaling.most:  # at once, as Kubernetes does
        wanted = min(max(current, scaling.least), scaling.most)
        return wanted, _remembered(scaling, history, now_s, None, wanted - current)
    recommended = min(max(recommendation(scaling, reading), scaling.least), scaling.most)
    past = history.recommendations or ((now_s, current),)
    steady = _stabilised(scaling, current, recommended, past, now_s)
    wanted = _limited(scaling, current, steady, history.changes, now_s)
    kept = History(recommendations=past, changes=history.changes)
    return wanted, _remembered(scaling, kept, now_s, recommended, wanted - current)


def recommendation(scaling: Scaling, reading: Reading) -> int:
    """The replicas that the signal of this moment asks for, whatever the limits, the past and the pace."""
    current = reading.replicas
    if not reading.ready:
        return current
    ratio = (reading.signal / scaling.target) ** (1 / scaling.steepness)
    with_starting = reading.starting > 0 and ratio > 1.0
    if not with_starting and not reading.missing:
        return current if _tolerated(scaling, ratio) else _rounded_up(ratio * reading.ready)
    # A replica without a signal counts as being at its target when others go, and as idle when others come.
    counted = reading.ready + reading.missing + (reading.starting if with_starting else 0)
    total = ratio * reading.ready + (reading.missing if ratio < 1.0 else 0.0)
    careful = total / counted
    if _tolerated(scaling, careful) or (ratio < 1.0) != (careful < 1.0):
        return current
    wanted = _rounded_up(total)
    return min(wanted, current) if careful < 1.0 else max(wanted, current)


def _tolerated(scaling: Scaling, ratio: float) -> bool:
    return 1.0 - scaling.down.tolerance <= ratio <= 1.0 + scaling.up.tolerance


def _rounded_up(replicas: float) -> int:
    return math.ceil(round(replicas, DIGITS))


def _stabilised(
    scaling: Scaling, current: int, recommended: int, past: tuple[tuple[float, int], ...], now_s: float
) -> int:
    """`current`, brought between the lowest recommendation of the window for up and the highest of that for down."""
    lowest = min((n for at_s, n in past if at_s > now_s - scaling.up.stabilisation_s), default=recommended)
    highest = max((n for at_s, n in past if at_s > now_s - scaling.down.stabilisation_s), default=recommended)
    return min(max(current, min(lowest, recommended)), max(highest, recommended))


def _limited(scaling: Scaling, current: int, wanted: int, changes: tuple[tuple[float, int], ...], now_s: float) -> int:
    """`wanted`, no further from `current` than the policies allow."""
    if wanted > current:
        return min(wanted, max(current, _bound(scaling.up, current, 1, changes, now_s)))
    if wanted < current:
        return max(wanted, min(current, _bound(scaling.down, current, -1, changes, now_s)))
    return current


def _bound(pace: Pace, current: int, sign: int, changes: tuple[tuple[float, int], ...], now_s: float) -> int:
    """The furthest count that the policies allow now, upwards (`sign` 1) or downwards (-1)."""
    if pace.select is Select.DISABLED or not pace.policies:
        return current
    bounds = []
    for policy in pace.policies:
        start = current - sum(change for at_s, change in changes if at_s > now_s - policy.period_s)
        step = policy.value if policy.unit is Unit.PODS else start * policy.value / 100
        # Kubernetes rounds both ways to the larger change, so that a policy never stops all change.
        bounds.append(math.ceil(round(start + step, DIGITS)) if sign > 0 else math.floor(round(start - step, DIGITS)))
    furthest = max if (pace.select is Select.MAX) == (sign > 0) else min
    return furthest(bounds)


def _remembered(scaling: Scaling, history: History, now_s: float, recommended: int | None, change: int) -> History:
    """The history with this decision, without what no window and no period reaches any more."""
    window = max(scaling.up.stabilisation_s, scaling.down.stabilisation_s)
    period = max((policy.period_s for policy in (*scaling.up.policies, *scaling.down.policies)), default=0.0)
    recommendations = tuple((at_s, count) for at_s, count in history.recommendations if at_s > now_s - window)
    changes = tuple((at_s, step) for at_s, step in history.changes if at_s > now_s - period)
    return History(
        recommendations=recommendations if recommended is None else (*recommendations, (now_s, recommended)),
        changes=(*changes, (now_s, change)) if change else changes,
    )
