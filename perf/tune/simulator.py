"""Simulates a candidate with the service times of this machine, corrected by the trials measured so far.

The simulation is exact, so its errors come from its input. Four corrections are fitted to the trials (`fitting.py`):
contention (executions that share cores or memory), overhead (the way to the server and back), and factors on throughput
and p99 for everything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

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
# The model's error while fewer than two configurations are measured.
UNKNOWN_ERROR = 0.05
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
    _known: dict[tuple[object, ...], Prediction] = field(default_factory=dict, repr=False)
    _costs: dict[Parallelism, Costs] = field(default_factory=dict, repr=False)

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        """See `Simulator`; all candidates get the same arrivals of an open load. Nothing is simulated twice."""
        key = candidate, str(traffic), traffic.rows, correction.contention, correction.overhead_us, requests
        if key not in self._known:
            self._known[key] = predict(
                candidate,
                self.config,
                traffic,
                self.profile,
                self.target,
                requests=requests,
                overhead_us=correction.overhead_us,
                stretch=correction.contention,
            )
        return self._known[key]

    def service_us(self, parallelism: Parallelism, rows: int) -> float:
        """Return the microseconds of an execution of `rows` rows while all instances work."""
        if parallelism not in self._costs:
            largest = max(ramp.max_batch_size for ramp in self.profile.ramps)
            candidate = Candidate(max_batch_size=largest, instances=parallelism.instances, threads=parallelism.threads)
            self._costs[parallelism] = Costs.of(candidate, self.profile)
        costs = self._costs[parallelism]
        return costs.alone_us[rows] * costs.slowdown(rows, parallelism.instances)

    def contention(self, trial: Trial, *, rows: int) -> float:
        """See `Simulator`."""
        traffic = Traffic.of_record(trial.load, rows=rows)
        uncorrected = self.predict(trial.candidate, traffic, NO_CORRECTION, requests=CONTENTION_REQUESTS)
        return uncorrected.longer(trial.counted)

    def outside_us(self, trial: Trial) -> float:
        """See `Simulator`; a closed loop's client turnaround is included."""
        open_loop = Traffic.of_record(trial.load).open
        way = Costs.of(trial.candidate, self.profile).way
        rows = max(1, trial.counted.rows // max(1, trial.counted.requests))
        turnaround_us = 0.0 if open_loop else way.of(rows).turnaround_us
        return way.mean_us(trial.counted.batches, rows=rows, open_loop=open_loop) + turnaround_us


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """A correction for each measured parallelism, and `default` for the others.

    `throughput_error` and `p99_error` are shares: how wrong the model is on a configuration that it was not fitted to
    (root mean square of the logarithms). None if fewer than two configurations tell, and `throughput_error` too if
    every one of them carried an open load: their throughput is the load's rate, and no prediction of the model.
    """

    by_parallelism: Mapping[Parallelism, Correction] = field(default_factory=dict)
    default: Correction = NO_CORRECTION
    throughput_error: float | None = None
    p99_error: float | None = None

    def of(self, candidate: Candidate) -> Correction:
        """Return the correction for a candidate."""
        return self.by_parallelism.get(Parallelism.of(candidate), self.default)

    def error(self, *, of_p99: bool) -> float:
        """Return the error to expect of a prediction of p99, or else of throughput."""
        error = self.p99_error if of_p99 else self.throughput_error
        return UNKNOWN_ERROR if error is None else max(LEAST_ERROR, error)

    def __str__(self) -> str:
        named = (("throughput", self.throughput_error), ("p99", self.p99_error))
        known = [f"{error:.1%} in {name}" for name, error in named if error is not None]
        return " and ".join(known) or "an unknown share yet"
