"""The simulated batcher against an exact queue, and against the figures of the Triton tutorial."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_source import Arrivals, ClosedLoop
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate


def capacity(service: Callable[[int], float], cap: int) -> float:
    """The arrival rate that full batches just carry."""
    return cap / service(cap)


def mean_latency(rate: float, service: Callable[[int], float], cap: int) -> float:
    """The exact mean time from arrival to the end of the execution, in M/D^b/1 without delay.

    The only instance takes all that wait, at most `cap`, whenever it is free; b rows take `service(b)`.
    A Markov chain on q, the number of requests that wait at the end of an execution. The next execution takes
    b = min(max(q, 1), cap) of them, and leaves q - b (or 0) and those that arrive within tau(b). A cycle adds b tau for
    its requests, (q - b) tau for those left, and rate tau^2 / 2 for new ones; the mean latency is what a cycle adds
    over what it serves (renewal reward). States that are practically never reached are cut off.
    """
    states = _states(rate, service, cap)
    q = np.arange(states)
    batch = np.minimum(np.maximum(q, 1), cap)
    tau = np.array([service(int(b)) for b in range(1, cap + 1)])[batch - 1]
    left = np.maximum(q - batch, 0)
    arrived = {b: _poisson(rate * service(b), states) for b in range(1, cap + 1)}
    steps = np.zeros((states, states))
    for state in range(states):
        steps[state, left[state] :] = arrived[int(batch[state])][: states - left[state]]
        steps[state, -1] += 1 - steps[state].sum()
    share = _stationary(steps)
    spent = batch * tau + left * tau + rate * tau**2 / 2
    return float(share @ spent / (share @ batch))


def _states(rate: float, service: Callable[[int], float], cap: int) -> int:
    """Enough states for the queue's tail to vanish in double precision, unless the load is near 1."""
    near = 1 / (1 - rate / capacity(service, cap))
    return int(2 * cap + 12 * rate * service(cap) + 60 + 16 * near)


def _poisson(mean: float, states: int) -> NDArray[np.float64]:
    counts = np.arange(1, states)
    logs: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(counts))]) - mean
    return np.exp(logs)


def _stationary(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The stationary distribution of the chain."""
    system = steps.T - np.eye(len(steps))
    system[-1] = 1.0
    right = np.zeros(len(steps))
    right[-1] = 1.0
    return np.linalg.solve(system, right)


FIXED, ROW = 5.0, 1.0


def service(rows: int) -> float:
    return FIXED + ROW * rows


@pytest.mark.slow
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
