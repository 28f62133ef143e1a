"""The flow of `perf.scale` against the simulation request by request, and its count of requests."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.variant import read
from perf.measure.service_profile import Profile, load
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget
from perf.records.traffic import Traffic
from perf.scale.curve import ReplicaCurve, Values, measure
from perf.scale.fleet import Conditions, Fleet, Outcome, Run
from perf.simulate.predict import simulated_run
from perf.studies.archive import RESULTS
from serve.cluster.scaling import Scaling

TARGET = LatencyTarget(latency_ms=60.0)
CALM = Conditions(start_s=20.0, start_cv=0.0)


@functools.cache
def profile() -> Profile:
    return Profile(ramps=(load(RESULTS / "grid" / "simulated_accelerator.default.b32.k1.json"),))


@functools.cache
def config() -> ModelConfig:
    return read("simulated_accelerator", None)


@functools.cache
def curve() -> ReplicaCurve:
    return measure(config(), profile(), TARGET, requests=6000)


class Watched(Fleet):
    """A fleet whose replicas are noted in each step."""

    seen: list[tuple[list[int], list[int]]]

    def _serve(self, rates: Values) -> None:
        super()._serve(rates)
        self.seen = [*getattr(self, "seen", []), (self.wanted.tolist(), self.ready.tolist())]

    def replicas(self, run: int) -> tuple[list[int], list[int]]:
        """Those wanted and those ready in each step."""
        return [wanted[run] for wanted, _ in self.seen], [ready[run] for _, ready in self.seen]


def flow(rates: list[float], replicas: int = 1) -> Outcome:
    """These rates, a second each, at replicas that do not change."""
    scaling = Scaling(least=replicas, most=replicas, target=1.0)
    run = Run(scaling=scaling, day=0, seed=0)
    return Fleet(curve(), [np.array(rates)], [run], CALM).run()[0]


def requests(rates: list[float], seed: int) -> float:
    """The share in time of the same rates at one replica, request by request."""
    rng = np.random.default_rng(seed)
    times = [second + rng.random(rng.poisson(rate)) for second, rate in enumerate(rates)]
    arrivals = tuple(np.sort(np.concatenate(times)).tolist())
    simulated = simulated_run(
        Candidate.of(config()), config(), Traffic(pattern="trace", times_s=arrivals), profile(), requests=1, seed=seed
    )
    return float(np.mean(simulated.latencies_us <= TARGET.latency_ms * 1e3))


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.2, 0.75, 1.0, 1.2])
def test_steady_loads_have_the_share_in_time_of_single_requests(load: float) -> None:
    rates = [load * curve().capacity.rate_per_s] * 60
    assert flow(rates).share == pytest.approx(requests(rates, seed=7), abs=0.03)


@pytest.mark.slow
def test_an_overload_and_its_end_have_the_share_in_time_of_single_requests() -> None:
    """20 s below the capacity, 6 s at 1.25 x what the replica answers at most, and 34 s below the capacity."""
    full = curve().saturated_per_s
    rates = [0.4 * full] * 20 + [1.25 * full] * 6 + [0.4 * full] * 34
    exact = np.mean([requests(rates, seed) for seed in range(3)])
    assert 0.4 < exact < 0.85  # the overload is felt, and it ends
    assert flow(rates).share == pytest.approx(exact, abs=0.04)


def test_the_capacity_is_the_last_rate_in_time_and_its_pending_count_littles_law() -> None:
    point = curve().capacity
    assert point.in_time >= 0.99
    later = [each for each in curve().points if each.rate_per_s > point.rate_per_s]
    assert later
    assert all(each.in_time < 0.99 for each in later)
    run = simulated_run(
        Candidate.of(config()),
        config(),
        Traffic(pattern="poisson", rate_per_s=point.rate_per_s),
        profile(),
        requests=6000,
        seed=3,
    )
    assert curve().target_pending == pytest.approx(point.rate_per_s * run.mean_us / 1e6, rel=0.05)


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 4000.0), min_size=20, max_size=60), st.integers(0, 5), st.booleans())
def test_no_request_is_lost(levels: list[float], seed: int, fails: bool) -> None:
    """Every request is in time, late or refused, whatever the rates, the target, failures and starts."""
    rates = np.repeat(levels, 10)
    conditions = Conditions(start_s=20.0, mtbf_s=300.0 if fails else 0.0)
    runs = [
        Run(scaling=Scaling(least=1, most=12, target=share * curve().target_pending), day=0, seed=seed)
        for share in (0.3, 0.9)
    ]
    fleet = Watched(curve(), [rates], runs, conditions)
    for number, outcome in enumerate(fleet.run()):
        wanted, ready = fleet.replicas(number)
        assert outcome.requests == pytest.approx(float(rates.sum()))
        assert outcome.in_time + outcome.late + outcome.refused == pytest.approx(outcome.requests)
        assert min(outcome.in_time, outcome.refused) >= 0
        assert outcome.in_flight <= curve().most_pending * 12 + 1e-6
        assert all(0 <= up <= most <= 12 for up, most in zip(ready, wanted, strict=True))
        assert outcome.replica_hours == pytest.approx(sum(wanted) / 3600)
        assert outcome.failures == 0 or fails


def test_a_replica_that_starts_takes_requests_after_its_start_time() -> None:
    rate = 2.5 * curve().capacity.rate_per_s
    run = Run(scaling=Scaling(least=1, most=9, target=curve().target_pending), day=0, seed=0)
    rates = np.array([1.0] * 30 + [rate] * 90)
    fleet = Watched(curve(), [rates], [run], CALM)
    fleet.run()
    added, ready = (next(step for step, count in enumerate(counts) if count > 1) for counts in fleet.replicas(0))
    assert added == 45  # the first decision that saw the new rate
    assert ready - added == 20 - 1  # the decision is at the end of its step


def test_without_a_replica_the_door_refuses() -> None:
    fleet = Fleet(
        curve(),
        [np.full(50, 10.0)],
        [Run(scaling=Scaling(least=1, most=1, target=1.0), day=0, seed=0)],
        Conditions(start_s=1e4, start_cv=0.0, mtbf_s=1.0),
    )
    (outcome,) = fleet.run()
    assert outcome.failures == 1
    assert outcome.refused == pytest.approx(500.0)
