"""The exact batch queue against independent figures and a bound from theory; the simulated batcher against it."""

import numpy as np
import pytest
from queueing import bound, capacity, mean_latency

from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_source import Arrivals, ClosedLoop
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate

FIXED, ROW = 5.0, 1.0
# No cap: never do so many wait.
NO_CAP = 150


def service(rows: int) -> float:
    return FIXED + ROW * rows


@pytest.mark.parametrize(
    ("rate", "exact", "limit"),
    [(0.1, 7.977, 8.182), (0.3, 11.750, 11.978), (0.5, 16.650, 16.667), (0.7, 27.647, 27.647)],
)
def test_without_a_cap_the_chain_and_the_bound_are_those_of_an_independent_solution(
    rate: float, exact: float, limit: float
) -> None:
    assert mean_latency(rate, service, NO_CAP) == pytest.approx(exact, abs=5e-4)
    assert bound(rate, fixed=FIXED, row=ROW) == pytest.approx(limit, abs=5e-4)


@pytest.mark.parametrize(("rate", "exact"), [(0.2, 9.898), (0.4, 13.905), (0.5, 17.342), (0.55, 21.355), (0.6, 46.883)])
def test_with_a_cap_of_8_the_chain_is_that_of_an_independent_solution(rate: float, exact: float) -> None:
    assert mean_latency(rate, service, 8) == pytest.approx(exact, abs=5e-4)


def test_with_a_cap_of_1_it_is_the_pollaczek_khinchine_formula() -> None:
    for load in (0.2, 0.5, 0.8, 0.95):
        waiting = load * 3.0 / (2 * (1 - load))
        assert mean_latency(load / 3.0, lambda rows: 3.0, 1) == pytest.approx(3.0 + waiting, rel=1e-6)


@pytest.mark.parametrize("fixed", [0.5, 5.0, 30.0])
@pytest.mark.parametrize("load", [0.05, 0.4, 0.75])
def test_the_bound_is_never_below_the_chain(fixed: float, load: float) -> None:
    exact = mean_latency(load, lambda rows: fixed + rows, 60 + round(6 * fixed))
    assert bound(load, fixed=fixed, row=1.0) >= exact * (1 - 1e-9)


def test_at_capacity_there_is_no_mean() -> None:
    assert capacity(service, 8) == pytest.approx(8 / 13)
    with pytest.raises(ValueError, match="capacity"):
        mean_latency(8 / 13, service, 8)
    with pytest.raises(ValueError, match="not below 1"):
        bound(1.0, fixed=5.0, row=1.0)


@pytest.mark.parametrize(("load", "requests"), [(0.3, 20_000), (0.5, 30_000), (0.7, 60_000)])
def test_the_simulated_batcher_is_within_half_a_percent_of_the_chain(load: float, requests: int) -> None:
    """Poisson arrivals at this share of the capacity; the standard error of the mean is below 0.3 %."""
    rate = load * capacity(service, 8)
    times = np.cumsum(np.random.default_rng(7).exponential(MS / rate, requests)).astype(np.int64)
    arrivals = Arrivals([Request(number=n, at=int(at)) for n, at in enumerate(times)])
    rules = Rules(max_batch_size=8, preferred=frozenset([8]))
    outcome = simulate(rules, lambda rows: round(service(rows) * MS), arrivals)
    assert float(outcome.mean_latency) / MS == pytest.approx(mean_latency(rate, service, 8), rel=0.005)


# The Triton tutorial's closed loop on an A100: two rows a request, at most eight together, and its rows per second.
TUTORIAL = {2: 998.1, 4: 1765.7, 6: 2518.5, 8: 3095.9, 10: 3182.8, 12: 3181.3, 14: 3184.5, 16: 3187.8}
# While half of c clients' requests run, the others' wait: an execution of c rows, in milliseconds, for c of 2 to 8.
TAU_MS = {2: 2.004, 4: 2.265, 6: 2.382, 8: 2.584}


@pytest.mark.parametrize("clients", TUTORIAL)
def test_the_tutorials_throughput_follows_from_its_four_service_times(clients: int) -> None:
    def make(number: int, client: int, at: Time) -> Request:
        return Request(number=number, client=client, at=at, rows=2)

    rules = Rules(max_batch_size=8, preferred=frozenset([8]))
    outcome = simulate(rules, lambda rows: round(TAU_MS[rows] * MS), ClosedLoop(clients, 4000, make, turnaround=1000))
    rows_per_s = 2 * len(outcome.answers) / (float(outcome.makespan) / 1e9)
    assert rows_per_s == pytest.approx(TUTORIAL[clients], rel=0.05)
