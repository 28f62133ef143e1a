"""The simulated batcher against an exact queue, and against the figures of the Triton tutorial."""

import numpy as np
import pytest
from queueing import capacity, mean_latency

from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_source import Arrivals, ClosedLoop
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate

FIXED, ROW = 5.0, 1.0


def service(rows: int) -> float:
    return FIXED + ROW * rows


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
