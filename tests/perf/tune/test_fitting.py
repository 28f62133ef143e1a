"""The fit of the model, and its error on configurations that it was not fitted to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from simulated_bench import SimulatedBench, accelerator, predicted

from perf.records.candidate import Candidate
from perf.records.study import HALVING, LatencyTarget, Prediction, Trial
from perf.records.traffic import Traffic
from perf.tune.fitting import Fit
from perf.tune.simulator import NO_CORRECTION, Correction, Corrections

TARGET = LatencyTarget(latency_ms=100)


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Predicts the same figures for every candidate; all executions take as long as predicted."""

    throughput: float = 100.0
    p99_ms: float = 50.0

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        known = predicted(accelerator, Candidate(max_batch_size=8), Traffic.parse("closed:8"), NO_CORRECTION, 100)
        percentiles = {50: 1.0, 90: 1.0, 95: 1.0, 99: self.p99_ms}
        return replace(known, candidate=candidate, throughput_rows_per_s=self.throughput, percentiles_ms=percentiles)

    def contention(self, trial: Trial, *, rows: int) -> float:
        return 1.0

    def outside_us(self, trial: Trial) -> float:
        return 0.0


def measured(instances: int, throughput: float, p99_ms: float, load: str = "closed:8") -> Trial:
    bench = SimulatedBench(service=accelerator, target=TARGET)
    trial = bench.measure(Candidate(max_batch_size=8), Traffic.parse(load), stage=HALVING, round=1, seconds=1.0)
    candidate = Candidate(max_batch_size=8, instances=instances)
    latencies = (p99_ms * 1e3,) * 100
    return replace(trial, candidate=candidate, throughput_rows_per_s=throughput, latencies_us=latencies)


def fitted(trials: Mapping[int, tuple[float, float]], load: str = "closed:8") -> Corrections:
    made = [measured(instances, *figures, load) for instances, figures in trials.items()]
    return Fit(simulator=Fixed(), rows=1, requests=100).corrections(made)


def test_the_error_is_that_on_configurations_left_out_of_the_fit() -> None:
    """Three parallelisms with one trial each leave nothing over in their own fit, however wrong the model is."""
    corrections = fitted({1: (33, 50), 2: (100, 50), 3: (300, 50)})
    # Each is predicted with the median factor of the two others.
    left_out = [
        math.log(own / np.median(others)) for own, others in ((33, (100, 300)), (100, (33, 300)), (300, (33, 100)))
    ]
    assert corrections.throughput_error == pytest.approx(math.sqrt(np.mean(np.square(left_out))))
    assert corrections.throughput_error is not None
    assert corrections.throughput_error > 1.0
    # The errors are apart: p99 was right.
    assert corrections.p99_error == pytest.approx(0.0, abs=1e-9)
    assert str(corrections) == f"{corrections.throughput_error:.1%} in throughput and 0.0% in p99"


def test_an_open_load_that_is_carried_shows_no_error_of_throughput() -> None:
    """Its throughput is its rate; the p99 was missed by half."""
    corrections = fitted({1: (100, 50), 2: (100, 75)}, "poisson:100")
    assert corrections.throughput_error is None
    assert corrections.p99_error == pytest.approx(math.log(1.5))
    assert str(corrections) == f"{math.log(1.5):.1%} in p99"
