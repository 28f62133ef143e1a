"""Instances that slow each other down, rest and wake up, and threads that are late: schedules worked out by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest

from perf.simulate.batcher.request import MS, Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate

ONE = Fraction(1)
ALONE = Rules(dynamic=False, instances=2)


def requests(*times: Fraction | int) -> Arrivals:
    return Arrivals([Request(number=number, at=at) for number, at in enumerate(times, 1)])


def ends(simulation: SimulationResult) -> dict[int, Fraction]:
    return {answer.request.number: Fraction(answer.at) for answer in simulation.answers}


def test_two_executions_share_a_device_while_both_run() -> None:
    """The first runs half alone, then half at half speed; the second half at half speed, then half alone."""
    simulation = simulate(ALONE, lambda rows: ONE, requests(Fraction(0), ONE / 2), slowdown=lambda rows, n: Fraction(n))
    assert ends(simulation) == {1: 3 * ONE / 2, 2: 2 * ONE}
    assert [(execution.start, execution.end) for execution in simulation.executions] == [
        (0, 3 * ONE / 2),
        (ONE / 2, 2 * ONE),
    ]


def test_the_device_does_the_same_work_in_the_same_time_however_it_is_shared() -> None:
    times = [Fraction(number, 7) for number in range(12)]
    rules = Rules(dynamic=False, instances=3)
    simulation = simulate(rules, lambda rows: ONE, requests(*times), slowdown=lambda rows, n: Fraction(n))
    assert simulation.makespan == 12
    assert max(ends(simulation).values()) == 12


def test_who_comes_while_an_instance_rests_joins_its_next_batch() -> None:
    """One answer at 10 ms, a rest of 2 ms: who waited since 5 ms starts at 12 ms, with whom came at 11 ms."""
    rules = Rules(max_batch_size=8, preferred=frozenset([8]))
    simulation = simulate(rules, lambda rows: 10 * MS, requests(0, 5 * MS, 11 * MS, 13 * MS), gap=lambda rows: 2 * MS)
    assert [([r.number for r in execution.requests], execution.start) for execution in simulation.executions] == [
        ([1], 0),
        ([2, 3], 12 * MS),
        ([4], 24 * MS),
    ]
    assert [answer.at for answer in simulation.answers] == [10 * MS, 22 * MS, 22 * MS, 34 * MS]


def test_a_batch_grows_until_an_idle_instance_takes_it() -> None:
    """2 ms to wake up: who comes 1 ms later is in the first batch, and the other instance has nothing to take.

    An instance that ends an execution takes the next batch at once.
    """
    rules = Rules(max_batch_size=8, preferred=frozenset([8]), instances=2)
    sent = requests(0, 1 * MS, 3 * MS, 4 * MS, 6 * MS)
    simulation = simulate(rules, lambda rows: 10 * MS, sent, dispatch=2 * MS)
    assert [([r.number for r in execution.requests], execution.start) for execution in simulation.executions] == [
        ([1, 2], 2 * MS),
        ([3, 4], 5 * MS),
        ([5], 12 * MS),
    ]


def test_who_comes_before_a_late_thread_sees_the_end_of_a_delay_is_in_the_batch() -> None:
    """5 ms of delay, seen 1 ms late: the request at 5.5 ms is in, that at 6.5 ms begins the next wait."""
    rules = Rules(max_batch_size=8, preferred=frozenset([8]), delay=5 * MS, instances=2)
    sent = requests(0, 5 * MS + MS // 2, 6 * MS + MS // 2)
    simulation = simulate(rules, lambda rows: 10 * MS, sent, lateness=1 * MS)
    assert [([r.number for r in execution.requests], execution.start) for execution in simulation.executions] == [
        ([1, 2], 6 * MS),
        ([3], 12 * MS + MS // 2),
    ]


def test_arriving_requests_lengthen_running_executions() -> None:
    """Each arrival costs 1 ms: of the first execution, two; the second begins with both, and the last finds none."""
    rules = Rules(max_batch_size=8, preferred=frozenset([8]))
    simulation = simulate(
        rules, lambda rows: 10 * MS, requests(0, 4 * MS, 11 * MS - 1, 40 * MS), burden=lambda running: 1 * MS
    )
    assert [(execution.rows, execution.start, execution.end) for execution in simulation.executions] == [
        (1, 0, 12 * MS),
        (2, 12 * MS, 22 * MS),
        (1, 40 * MS, 50 * MS),
    ]


def test_an_execution_takes_longer_after_a_pause() -> None:
    """A tenth of the pause: the first follows one since 0, the second none, the third one of 18 ms."""
    rules = Rules(max_batch_size=8, preferred=frozenset([8]))
    simulation = simulate(
        rules, lambda rows: 10 * MS, requests(10 * MS, 12 * MS, 49 * MS), waking=lambda idle: idle // 10
    )
    assert [(execution.start, execution.end) for execution in simulation.executions] == [
        (10 * MS, 21 * MS),
        (21 * MS, 31 * MS),
        (49 * MS, 60.8 * MS),
    ]


def test_a_batch_whose_delay_has_ended_does_not_grow() -> None:
    """As traced: the batcher sleeps while a batch waits, and what came meanwhile goes into the next execution.

    Four requests start when the delay of 5 ms is over; the fifth waits as a batch of its own, the three after it are
    looked at only when the instance has taken it.
    """
    arrived = [0, 4.23, 4.80, 4.81, 6.64, 14.55, 17.27, 20.61]
    rules = Rules(max_batch_size=8, preferred=frozenset([8]), delay=5 * MS)
    simulation = simulate(rules, lambda rows: 23 * MS, requests(*[round(at * MS) for at in arrived]))
    assert [[r.number for r in execution.requests] for execution in simulation.executions] == [
        [1, 2, 3, 4],
        [5],
        [6, 7, 8],
    ]


@pytest.mark.parametrize(("batcher_first", "sizes"), [(False, {1: 3}), (True, {1: 1, 2: 1})])
def test_what_arrives_after_a_batch_was_formed_joins_it_only_if_the_batcher_wins(
    batcher_first: bool, sizes: dict[int, int]
) -> None:
    """The second request is queued for the busy instance at 6 ms, and the third waits unseen until the execution ends.

    Triton wakes the batcher at an arrival only if a whole preferred size waits.
    """
    rules = Rules(max_batch_size=8, preferred=frozenset([8]), delay=MS)
    arriving = (0, 5 * MS, 10 * MS)
    assert simulate(rules, lambda _: 20 * MS, requests(*arriving), race=lambda: batcher_first).sizes == sizes
    # Without a delay the batch grows at once.
    at_once = replace(rules, delay=0)
    assert simulate(at_once, lambda _: 20 * MS, requests(*arriving), race=lambda: False).sizes == {1: 1, 2: 1}
