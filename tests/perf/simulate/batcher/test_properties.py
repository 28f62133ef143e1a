"""What no batcher may do, whatever the configuration and the requests: lose rows, overtake, overfill, idle."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.simulate.batcher.payload import ClosingRule
from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_source import Arrivals, ClosedLoop
from perf.simulate.batcher.rules import QueuePolicy, Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate


@st.composite
def rules(draw: st.DrawFn, *, policies: bool = False, delays: bool = True) -> Rules:
    limit = draw(st.integers(1, 12))
    policy = QueuePolicy()
    if policies:
        policy = QueuePolicy(
            timeout=draw(st.sampled_from([0, 3 * MS, 40 * MS, 700 * MS])),
            delay_late=draw(st.booleans()),
            max_size=draw(st.sampled_from([0, 2, 10])),
        )
    levels = draw(st.integers(0, 2)) if policies else 0
    return Rules(
        dynamic=draw(st.booleans()) or policies,
        max_batch_size=limit,
        preferred=draw(st.frozensets(st.integers(1, limit), max_size=3)) or frozenset([limit]),
        delay=draw(st.sampled_from([0, 1, MS, 5 * MS, 30 * MS])) if delays else 0,
        preserve_ordering=draw(st.booleans()) and levels < 2 and not policy.delay_late,
        priority_levels=levels,
        default_priority=min(levels, 1),
        policy=policy,
        equal_shape=frozenset(draw(st.sampled_from([[], ["X"]]))),
        instances=draw(st.integers(1, 3)),
    )


@st.composite
def requests(draw: st.DrawFn, limit: int) -> list[Request]:
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 500, MS, 7 * MS, 60 * MS, 900 * MS]), min_size=1, max_size=40))
    return [
        Request(
            number=number,
            at=sum(gaps[: number + 1]),
            rows=draw(st.integers(1, limit)),
            shapes={"X": (draw(st.integers(1, 2)),)},
            priority=draw(st.integers(0, 3)),
        )
        for number in range(len(gaps))
    ]


def late() -> st.SearchStrategy[Time]:
    """How long a thread takes to wake up."""
    return st.sampled_from([0, 1, MS // 5, 12 * MS])


def service(rows: int) -> Time:
    return 10 * MS + rows * MS


def each_instance_runs_one_at_a_time(simulation: SimulationResult) -> bool:
    ends: dict[int, Time] = {}
    for execution in simulation.executions:
        if execution.start < ends.get(execution.instance, 0):
            return False
        ends[execution.instance] = execution.end
    return True


@given(st.data())
def test_every_request_is_answered_once_and_none_is_overfilled(data: st.DataObject) -> None:
    rule = data.draw(rules(policies=data.draw(st.booleans())))
    sent = data.draw(requests(rule.max_batch_size))
    simulation = simulate(rule, service, Arrivals(sent), dispatch=data.draw(late()), lateness=data.draw(late()))
    assert sorted(answer.request.number for answer in simulation.answers) == [request.number for request in sent]
    ran = [request.number for execution in simulation.executions for request in execution.requests]
    assert sorted(ran) == sorted(answer.request.number for answer in simulation.served)
    for execution in simulation.executions:
        assert execution.rows == sum(request.rows for request in execution.requests) <= rule.max_batch_size
        assert execution.end - execution.start == service(execution.rows)
        assert all(request.at <= execution.start for request in execution.requests)
        assert len({rule.batch_key(request) for request in execution.requests}) == 1 or not rule.dynamic
    assert each_instance_runs_one_at_a_time(simulation)


@given(st.data())
def test_requests_start_in_order_of_arrival_and_answers_keep_it_with_preserve_ordering(data: st.DataObject) -> None:
    rule = data.draw(rules())
    sent = Arrivals(data.draw(requests(rule.max_batch_size)))
    simulation = simulate(rule, service, sent, dispatch=data.draw(late()), lateness=data.draw(late()))
    started = [request.number for execution in simulation.executions for request in execution.requests]
    assert started == sorted(started)
    if rule.preserve_ordering or rule.instances == 1:
        answered = [answer.request.number for answer in simulation.answers]
        assert answered == sorted(answered) or not rule.dynamic


@given(st.data())
def test_without_delay_no_instance_is_idle_while_a_request_waits(data: st.DataObject) -> None:
    rule = data.draw(rules(delays=False))
    simulation = simulate(rule, service, Arrivals(data.draw(requests(rule.max_batch_size))))
    for execution in simulation.executions:
        waited_since = min(request.at for request in execution.requests)
        if waited_since < execution.start:
            # From its arrival until it started, every instance was busy: at each moment as many executions ran.
            moments = {waited_since} | {
                other.end for other in simulation.executions if waited_since <= other.end < execution.start
            }
            for moment in moments:
                running = sum(other.start <= moment < other.end for other in simulation.executions)
                assert running == rule.instances


@given(st.data())
def test_a_closed_loop_never_has_more_in_flight_than_clients(data: st.DataObject) -> None:
    rule = data.draw(rules())
    clients, total = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 60))

    def make(number: int, client: int, at: Time) -> Request:
        return Request(number=number, at=at, client=client, shapes={"X": (1 + number % 2,)})

    simulation = simulate(rule, service, ClosedLoop(clients, total, make))
    assert len(simulation.answers) == total
    for client in range(clients):
        of_client = [answer for answer in simulation.answers if answer.request.client == client]
        assert all(answer.at < following.request.at for answer, following in itertools.pairwise(of_client))
    assert max(simulation.sizes) <= min(clients, rule.max_batch_size)


@pytest.mark.slow
def test_eight_clients_take_turns_in_two_halves() -> None:
    """While the requests of one half run those of the other wait, so a full loop of c clients runs c/2 at a time."""
    rule = Rules(max_batch_size=8, preferred=frozenset([8]))
    simulation = simulate(rule, service, ClosedLoop(8, 4000, lambda n, c, at: Request(number=n, at=at, client=c)))
    assert abs(simulation.rows_per_execution - 4) < 0.1


def test_a_freed_instance_is_missed_until_the_next_poll_with_a_queue_policy() -> None:
    """Without prefetch a burst of 100 takes 1.5 s instead of 0.1 s: a poll before each batch but the first."""
    burst = [Request(number=n, at=0) for n in range(100)]
    fast = Rules(max_batch_size=32, preferred=frozenset([32]))
    slow = Rules(max_batch_size=32, preferred=frozenset([32]), policy=QueuePolicy(max_size=1000))
    assert [
        execution.start // MS for execution in simulate(fast, lambda rows: 30 * MS, Arrivals(burst)).executions
    ] == [
        0,
        30,
        60,
        90,
    ]
    simulation = simulate(slow, lambda rows: 30 * MS, Arrivals(burst))
    assert [execution.start // MS for execution in simulation.executions] == [0, 500, 1000, 1500]
    assert [execution.closing.rule for execution in simulation.executions][:3] == [ClosingRule.MAX_BATCH_SIZE] * 3
