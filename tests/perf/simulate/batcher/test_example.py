"""The tutorial's five requests A to E, to the last fraction: which run together, how long it takes, how long they wait.

A (4 rows) and C (2) come at 0, B (2) at X/3, D (6) and E (2) at 2X/3; every execution takes X, whatever its rows.
"""

from fractions import Fraction

import pytest

from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate

X = Fraction(1)
NAMES = "ACBDE"
REQUESTS = [(Fraction(0), 4), (Fraction(0), 2), (X / 3, 2), (2 * X / 3, 6), (2 * X / 3, 2)]
SHORT = [Fraction(1, 1000), Fraction(1, 6), Fraction(333, 1000)]
LONG = [Fraction(1, 3), Fraction(1, 2), Fraction(10)]


def run(*, instances: int, delay: Time = 0, dynamic: bool = True) -> SimulationResult:
    rules = Rules(dynamic=dynamic, max_batch_size=8, preferred=frozenset([8]), delay=delay, instances=instances)
    load = Arrivals([Request(number=n, at=at, rows=rows) for n, (at, rows) in enumerate(REQUESTS)])
    return simulate(rules, lambda rows: X, load)


def schedule(simulation: SimulationResult) -> list[tuple[str, Fraction]]:
    return [
        ("".join(NAMES[r.number] for r in execution.requests), Fraction(execution.start))
        for execution in simulation.executions
    ]


def check(
    simulation: SimulationResult, expected: list[tuple[str, Fraction]], makespan: Fraction, latency: Fraction
) -> None:
    assert schedule(simulation) == expected
    assert simulation.makespan == makespan
    assert simulation.mean_latency == latency
    # The same mean, from the expected schedule alone.
    sent = dict(zip(NAMES, (at for at, _ in REQUESTS), strict=True))
    assert latency == sum(start + X - sent[name] for names, start in expected for name in names) / 5


def test_one_instance_without_batching() -> None:
    simulation = run(instances=1, dynamic=False)
    check(simulation, [(name, n * X) for n, name in enumerate(NAMES)], 5 * X, 8 * X / 3)


def test_one_instance_without_delay() -> None:
    check(run(instances=1), [("AC", Fraction(0)), ("BD", X), ("E", 2 * X)], 3 * X, 22 * X / 15)


@pytest.mark.parametrize("d", SHORT)
def test_one_instance_with_a_delay_shorter_than_the_gap_is_worse_than_none(d: Fraction) -> None:
    simulation = run(instances=1, delay=d)
    check(simulation, [("AC", d), ("BD", X + d), ("E", 2 * X + d)], 3 * X + d, 22 * X / 15 + d)


@pytest.mark.parametrize("d", LONG)
def test_one_instance_with_a_delay_that_reaches_the_next_request(d: Fraction) -> None:
    check(run(instances=1, delay=d), [("ACB", X / 3), ("DE", 4 * X / 3)], 7 * X / 3, 7 * X / 5)


def test_two_instances_without_batching() -> None:
    simulation = run(instances=2, dynamic=False)
    check(simulation, [("A", Fraction(0)), ("C", Fraction(0)), ("B", X), ("D", X), ("E", 2 * X)], 3 * X, 22 * X / 15)


def test_two_instances_without_delay() -> None:
    check(run(instances=2), [("AC", Fraction(0)), ("B", X / 3), ("DE", X)], 2 * X, 17 * X / 15)


@pytest.mark.parametrize("d", SHORT)
def test_two_instances_with_a_short_delay(d: Fraction) -> None:
    simulation = run(instances=2, delay=d)
    check(simulation, [("AC", d), ("B", X / 3 + d), ("DE", X + d)], 2 * X + d, 17 * X / 15 + d)


@pytest.mark.parametrize("d", LONG)
def test_two_instances_with_a_long_delay_end_sooner_but_answer_no_faster(d: Fraction) -> None:
    check(run(instances=2, delay=d), [("ACB", X / 3), ("DE", 2 * X / 3)], 5 * X / 3, 17 * X / 15)
