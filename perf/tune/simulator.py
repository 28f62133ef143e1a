"""Simulates a candidate with the service times of this machine, corrected by the trials measured so far.

The simulation is exact, so its errors come from its input. Four corrections are fitted to the trials: contention
(executions that share cores or memory), overhead (the way to the server and back), and factors on throughput and p99
for everything else.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction, Trial
from perf.records.traffic import Traffic
from perf.simulate.costs import Costs
from perf.simulate.predict import predict
from perf.tune.space import Parallelism

# Two measurements of one configuration differ by about this much, so a smaller model error is not believed.
LEAST_ERROR = 0.02
OVERHEAD_STEP_US = 50.0
# A random open load of a few seconds brings a few percent more or less than its rate.
OPEN_CARRIED = 0.9
# Requests to simulate for the mean time of an execution of each size.
CONTENTION_REQUESTS = 6000


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Contention multiplies each execution's time, overhead is added outside the server; two factors on the result."""

    contention: float = 1.0
    overhead_us: float = 0.0
    throughput: float = 1.0
    p99: float = 1.0


NO_CORRECTION = Correction()


class Simulator(Protocol):
    """Predicts what a candidate does under a load."""

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        """Simulate `candidate` with the contention and the overhead of `correction`; its two factors are not used."""

    def contention(self, trial: Trial, *, rows: int) -> float:
        """Return measured over predicted time of the trial's executions; its requests have `rows` rows."""

    def outside_us(self, trial: Trial) -> float:
        """Return the profiled microseconds of a request's cycle that it spends outside its execution."""


@dataclass(frozen=True, kw_only=True)
class ProfiledSimulator:
    """Simulates a model from the ramps of its profile; lateness is counted against `target`."""

    config: ModelConfig
    profile: Profile
    target: LatencyTarget
    _uncorrected: dict[tuple[Candidate, str], Prediction] = field(default_factory=dict, repr=False)

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        """See `Simulator`; all candidates get the same arrivals of an open load."""
        return predict(
            candidate,
            self.config,
            traffic,
            self.profile,
            self.target,
            requests=requests,
            overhead_us=correction.overhead_us,
            stretch=correction.contention,
        )

    def service_us(self, candidate: Candidate, rows: int) -> float:
        """Return the microseconds of an execution of `rows` rows while all instances work."""
        costs = Costs.of(candidate, self.profile)
        return costs.alone_us[rows] * costs.slowdown(rows, candidate.instances)

    def contention(self, trial: Trial, *, rows: int) -> float:
        """See `Simulator`."""
        key = trial.candidate, trial.load
        if key not in self._uncorrected:
            traffic = Traffic.parse(trial.load, rows=rows)
            self._uncorrected[key] = self.predict(trial.candidate, traffic, NO_CORRECTION, requests=CONTENTION_REQUESTS)
        return self._uncorrected[key].longer(trial.counted)

    def outside_us(self, trial: Trial) -> float:
        """See `Simulator`; a closed loop's client turnaround is included."""
        open_loop = Traffic.parse(trial.load).open
        way = Costs.of(trial.candidate, self.profile).way
        rows = max(1, trial.counted.rows // max(1, trial.counted.requests))
        turnaround_us = 0.0 if open_loop else way.of(rows).turnaround_us
        return way.mean_us(trial.counted.batches, rows=rows, open_loop=open_loop) + turnaround_us


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """A correction for each measured parallelism, and `default` for the others.

    `error` is the share of the throughput that they leave unexplained: the root mean square over the trials.
    """

    by_parallelism: Mapping[Parallelism, Correction] = field(default_factory=dict)
    default: Correction = NO_CORRECTION
    error: float = 0.05

    def of(self, candidate: Candidate) -> Correction:
        """Return the correction for a candidate."""
        return self.by_parallelism.get(Parallelism.of(candidate), self.default)


def fit(
    trials: Iterable[Trial], simulator: Simulator, *, rows: int, requests: int, p99_ms: Callable[[Trial], float]
) -> Corrections:
    """Fit one correction for each measured parallelism; the default is their median."""
    groups: dict[Parallelism, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(Parallelism.of(trial.candidate), []).append(trial)
    if not groups:
        return Corrections()
    corrections, residuals = {}, []
    for parallelism, group in groups.items():
        corrections[parallelism], errors = _fit(group, simulator, rows=rows, requests=requests, p99_ms=p99_ms)
        residuals += errors
    default = Correction(
        contention=_median([correction.contention for correction in corrections.values()]),
        overhead_us=_median([correction.overhead_us for correction in corrections.values()]),
        throughput=_median([correction.throughput for correction in corrections.values()]),
        p99=_median([correction.p99 for correction in corrections.values()]),
    )
    error = max(LEAST_ERROR, math.sqrt(float(np.mean(np.square(residuals)))))
    return Corrections(by_parallelism=corrections, default=default, error=error)


def _fit(
    trials: Sequence[Trial],
    simulator: Simulator,
    *,
    rows: int,
    requests: int,
    p99_ms: Callable[[Trial], float],
) -> tuple[Correction, list[float]]:
    """Return the correction for trials of one parallelism, and the logarithms of what is left in their throughputs."""
    inputs = _fit_inputs(trials, simulator, rows=rows)
    predictions: dict[tuple[Candidate, str], Prediction] = {}
    throughputs, p99s = [], []
    for trial in trials:
        key = trial.candidate, trial.load
        if key not in predictions:
            traffic = Traffic.parse(trial.load, rows=rows)
            predictions[key] = simulator.predict(trial.candidate, traffic, inputs, requests=requests)
        prediction = predictions[key]
        offered = Traffic.parse(trial.load).rate_per_s * rows
        reached = min(trial.throughput_rows_per_s, prediction.throughput_rows_per_s)
        carried = reached >= OPEN_CARRIED * offered
        if offered and carried:
            throughputs.append(1.0)  # both carried the load, so any difference is chance
        else:
            throughputs.append(trial.throughput_rows_per_s / max(prediction.throughput_rows_per_s, 1e-9))
        # If requests were lost or the queue grew to the end, the p99 measures the length of the trial.
        if math.isfinite(p99_ms(trial)) and (not offered or carried):
            p99s.append(p99_ms(trial) / max(prediction.percentiles_ms[99], 1e-9))
    factor = max(_median(throughputs), 1e-3)
    correction = Correction(
        contention=inputs.contention,
        overhead_us=inputs.overhead_us,
        throughput=factor,
        p99=_median(p99s) if p99s else 1.0,
    )
    return correction, [math.log(max(throughput, 1e-9) / factor) for throughput in throughputs]


def _fit_inputs(trials: Sequence[Trial], simulator: Simulator, *, rows: int) -> Correction:
    """Return contention and overhead, rounded to less than a trial can tell, so that predictions are reused."""
    profiled = [simulator.outside_us(trial) for trial in trials]
    more = _median([_outside_us(trial) - outside for trial, outside in zip(trials, profiled, strict=True)])
    return Correction(
        contention=round(_median([simulator.contention(trial, rows=rows) for trial in trials]), 2),
        overhead_us=OVERHEAD_STEP_US * round(max(-min(profiled), more) / OVERHEAD_STEP_US),
    )


def _outside_us(trial: Trial) -> float:
    """Return a request's mean microseconds outside queue and execution; a closed loop's cycle is by Little's law."""
    answered = [us for us in trial.latencies_us if math.isfinite(us)]
    counted, traffic = trial.counted, Traffic.parse(trial.load)
    inside = counted.queue_ns + counted.compute_input_ns + counted.compute_infer_ns
    if not answered:
        return 0.0
    cycle = trial.seconds / len(answered) * 1e6 * traffic.clients if not traffic.open else float(np.mean(answered))
    return max(0.0, cycle - counted.per_request_us(inside))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
