"""`serve.cluster.scaling` against examples of the documentation of Kubernetes, computed by hand, and its properties."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.cluster.scaling import DOWN, UP, History, Pace, Policy, Reading, Scaling, Select, Unit, recommendation, scale

WIDE = Scaling(least=1, most=1000, target=100.0)
AT_ONCE = Pace(stabilisation_s=0.0, policies=(Policy(unit=Unit.PERCENT, value=10_000, period_s=1.0),))
# The documentation's example of two policies for removing.
DOCUMENTED = Pace(
    stabilisation_s=0.0,
    policies=(Policy(unit=Unit.PODS, value=4, period_s=60.0), Policy(unit=Unit.PERCENT, value=10, period_s=60.0)),
)


def driven(scaling: Scaling, signals: Iterable[float], replicas: int, every_s: float = 15.0) -> list[int]:
    """The replicas after each decision, if all are ready at once and the signal does not depend on them."""
    history, counts = History(), []
    for number, signal in enumerate(signals):
        reading = Reading(replicas=replicas, ready=replicas, signal=signal)
        replicas, history = scale(scaling, reading, history, number * every_s)
        counts.append(replicas)
    return counts


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        # "if the current metric value is 200m, and the desired value is 100m, the number of replicas will be doubled"
        (Reading(replicas=4, ready=4, signal=200.0), 8),
        # "If the current value is instead 50m, you'll halve the number of replicas"
        (Reading(replicas=4, ready=4, signal=50.0), 2),
        # Within a tolerance of 0.1 nothing changes, its ends included.
        (Reading(replicas=10, ready=10, signal=110.0), 10),
        (Reading(replicas=10, ready=10, signal=90.0), 10),
        (Reading(replicas=10, ready=10, signal=111.0), 12),
        (Reading(replicas=10, ready=10, signal=89.0), 9),
        # Replicas that start count as idle when others would come: 3 x 3.0 + 2 x 0 over 5 is 1.8.
        (Reading(replicas=5, ready=3, signal=300.0), 9),
        # The same turns the direction: 3 x 1.2 over 5 is 0.72, so nothing changes.
        (Reading(replicas=5, ready=3, signal=120.0), 5),
        # They do not count when others go: 3 x 0.5.
        (Reading(replicas=5, ready=3, signal=50.0), 2),
        # A replica without a signal counts as at its target when others go: (3 x 0.2 + 1) / 4 is 0.4.
        (Reading(replicas=4, ready=3, missing=1, signal=20.0), 2),
        # ... and as idle when others come: 3 x 2.0 over 4 is 1.5.
        (Reading(replicas=4, ready=3, missing=1, signal=200.0), 6),
        # Without any signal nothing changes.
        (Reading(replicas=4, ready=0, missing=2, signal=900.0), 4),
    ],
)
def test_the_signal_of_a_moment(reading: Reading, expected: int) -> None:
    assert recommendation(WIDE, reading) == expected


def test_a_steep_signal_asks_for_what_its_load_needs() -> None:
    """16 x the target at steepness 4 is twice the load; 1.4 x is within the tolerance, since 1.4^(1/4) is 1.088."""
    steep = Scaling(least=1, most=1000, target=100.0, steepness=4.0)
    for replicas, signal, expected in ((5, 1600.0, 10), (5, 140.0, 5), (8, 6.25, 4)):
        assert recommendation(steep, Reading(replicas=replicas, ready=replicas, signal=signal)) == expected


def test_replicas_are_removed_after_five_minutes_below_the_highest_recommendation() -> None:
    # 10 -> 5 is recommended at 0 s; the 10 replicas at the start are a recommendation too, which lasts 300 s.
    counts = driven(WIDE, [50.0] * 21 + [100.0], 10)
    assert counts[:20] == [10] * 20
    assert counts[20] == 5
    # A single peak in between holds them for five minutes more.
    peak = driven(WIDE, [50.0] * 10 + [100.0] + [50.0] * 20, 10)
    assert peak == [10] * 30 + [5]


def test_adding_waits_for_the_lowest_recommendation_of_its_window() -> None:
    slow = Pace(stabilisation_s=60.0, policies=AT_ONCE.policies)
    scaling = Scaling(least=1, most=100, target=100.0, up=slow)
    assert driven(scaling, [200.0, 300.0, 100.0, 300.0, 300.0, 300.0, 200.0, 300.0], 10) == [10] * 6 + [20, 20]


def test_default_policies_add_the_larger_of_four_replicas_and_a_doubling_every_15_s() -> None:
    assert driven(WIDE, [10_000.0] * 8, 1) == [5, 10, 20, 40, 80, 160, 320, 640]
    # Decisions more often than the period share what the period allows.
    assert driven(WIDE, [10_000.0] * 5, 1, every_s=5.0) == [5, 5, 5, 10, 10]


def test_the_documentation_of_policies_for_removing() -> None:
    """80 replicas lose 10 %: 8, then 8 (7.2 rounded up); below 40 the policy of 4 replicas removes more."""
    scaling = Scaling(least=1, most=100, target=100.0, down=DOCUMENTED)
    counts = driven(scaling, [1.0] * 13, 80, every_s=60.0)
    assert counts == [72, 64, 57, 51, 45, 40, 36, 32, 28, 24, 20, 16, 12]


@pytest.mark.parametrize(
    ("select", "up", "down"), [(Select.MAX, 20, 1), (Select.MIN, 14, 6), (Select.DISABLED, 10, 10)]
)
def test_which_policy_of_several_holds(select: Select, up: int, down: int) -> None:
    pace = Pace(
        stabilisation_s=0.0,
        policies=(Policy(unit=Unit.PODS, value=4, period_s=15.0), Policy(unit=Unit.PERCENT, value=100, period_s=15.0)),
        select=select,
    )
    scaling = Scaling(least=1, most=1000, target=100.0, up=pace, down=pace)
    assert driven(scaling, [10_000.0], 10) == [up]
    assert driven(scaling, [0.0], 10) == [down]


def test_a_count_outside_the_limits_is_corrected_at_once() -> None:
    scaling = Scaling(least=2, most=6, target=100.0)
    assert (driven(scaling, [100.0], 9), driven(scaling, [100.0], 1)) == ([6], [2])


def test_the_history_stays_short() -> None:
    history = History()
    for second in range(1000):
        _, history = scale(WIDE, Reading(replicas=3, ready=3, signal=100.0 * (second % 7)), history, float(second))
    assert len(history.recommendations) <= DOWN.stabilisation_s + 1
    assert len(history.changes) <= max(policy.period_s for policy in UP.policies) + 1


COUNTS = st.integers(1, 40)
SIGNALS = st.floats(0.0, 2000.0)
HISTORIES = st.lists(st.tuples(st.floats(0.0, 600.0), st.integers(1, 30)), max_size=8).map(
    lambda past: History(recommendations=tuple(sorted(past)))
)


@given(COUNTS, COUNTS, st.integers(0, 5), SIGNALS, SIGNALS, HISTORIES)
def test_more_signal_never_means_fewer_replicas_and_all_is_within_the_limits(
    ready: int, starting: int, missing: int, one: float, other: float, history: History
) -> None:
    scaling = Scaling(least=2, most=30, target=100.0, steepness=1.0 + starting / 10)
    readings = [
        Reading(replicas=ready + missing + starting, ready=ready, missing=missing, signal=signal)
        for signal in sorted((one, other))
    ]
    less, more = (scale(scaling, reading, history, 600.0)[0] for reading in readings)
    assert 2 <= less <= more <= 30


@given(COUNTS, st.lists(st.floats(90.0, 110.0), min_size=1, max_size=60))
def test_nothing_changes_within_the_tolerance(replicas: int, signals: list[float]) -> None:
    scaling = Scaling(least=1, most=40, target=100.0, up=AT_ONCE, down=AT_ONCE)
    assert driven(scaling, signals, replicas) == [replicas] * len(signals)


@given(st.floats(0.5, 60.0), st.integers(1, 60))
def test_a_constant_load_settles(load: float, replicas: int) -> None:
    """A load that spreads over the replicas leads to one count and stays there."""
    scaling = Scaling(least=1, most=100, target=1.0, up=AT_ONCE, down=AT_ONCE)
    history, counts = History(), []
    for second in range(20):
        reading = Reading(replicas=replicas, ready=replicas, signal=load / replicas)
        replicas, history = scale(scaling, reading, history, float(second))
        counts.append(replicas)
    assert all(before == after for before, after in itertools.pairwise(counts[3:]))
    assert load / 1.1 - 1e-9 <= replicas
