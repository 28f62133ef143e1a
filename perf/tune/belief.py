"""What the measurements taught about the model: how much slower its instances really are together, and what is outside.

The simulation is exact, so what it gets wrong is its input: executions that share cores or memory with others
(contention), the way to the server and back (overhead), and what has no term of its own (rate and tail).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from perf.records.candidate import Candidate
from perf.records.study import Prediction, Trial
from perf.records.traffic import Traffic
from perf.tune.space import Pair

# Two measurements of one configuration differ by about this much, so no model is believed to be better.
LEAST_ERROR = 0.02
OVERHEAD_STEP_US = 50.0
# An open load that is drawn for a few seconds brings a few percent more or less than its rate.
OPEN_CARRIED = 0.9


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Corrections of a pair: a factor on every execution, microseconds more outside, factors on throughput and p99."""

    contention: float = 1.0
    overhead_us: float = 0.0
    rate: float = 1.0
    tail: float = 1.0


AS_PROFILED = Terms()


class Simulator(Protocol):
    """The profiled model, simulated under a load."""

    def predict(self, candidate: Candidate, traffic: Traffic, terms: Terms, *, requests: int) -> Prediction:
        """What `candidate` would do, with executions and overhead as `terms` says (not its rate and tail)."""

    def contention(self, trial: Trial, *, rows: int) -> float:
        """Mean time of the counted executions over what is predicted of their sizes, with requests of `rows` rows."""

    def outside_us(self, trial: Trial) -> float:
        """Microseconds of a request's cycle from and to its execution, as profiled."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A prediction as the measurements corrected it."""

    prediction: Prediction
    throughput_rows_per_s: float
    p99_ms: float

    @property
    def candidate(self) -> Candidate:
        """Of which configuration."""
        return self.prediction.candidate


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Corrections by pair, `others` for one that was not measured.

    `error` is the share of the throughput that they do not explain: the root of the mean square over the trials.
    """

    terms: Mapping[Pair, Terms] = field(default_factory=dict)
    others: Terms = AS_PROFILED
    error: float = 0.05

    def of(self, candidate: Candidate) -> Terms:
        """The corrections of a candidate's pair."""
        return self.terms.get(Pair.of(candidate), self.others)

    def expect(self, prediction: Prediction) -> Expected:
        """The figures that a measurement of it should show."""
        terms = self.of(prediction.candidate)
        return Expected(
            prediction=prediction,
            throughput_rows_per_s=prediction.throughput_rows_per_s * terms.rate,
            p99_ms=prediction.percentiles_ms[99] * terms.tail,
        )


def fitted(
    trials: Iterable[Trial], simulator: Simulator, *, rows: int, requests: int, p99_ms: Callable[[Trial], float]
) -> Belief:
    """Fit the terms of every pair that has been measured, and of the others from all of them together."""
    by_pair: dict[Pair, list[Trial]] = {}
    for trial in trials:
        by_pair.setdefault(Pair.of(trial.candidate), []).append(trial)
    if not by_pair:
        return Belief()
    terms, left = {}, []
    for pair, measured in by_pair.items():
        terms[pair], residuals = _fit(measured, simulator, rows=rows, requests=requests, p99_ms=p99_ms)
        left += residuals
    others = Terms(
        contention=_median([one.contention for one in terms.values()]),
        overhead_us=_median([one.overhead_us for one in terms.values()]),
        rate=_median([one.rate for one in terms.values()]),
        tail=_median([one.tail for one in terms.values()]),
    )
    return Belief(terms=terms, others=others, error=max(LEAST_ERROR, math.sqrt(float(np.mean(np.square(left))))))


def _fit(
    trials: Sequence[Trial],
    simulator: Simulator,
    *,
    rows: int,
    requests: int,
    p99_ms: Callable[[Trial], float],
) -> tuple[Terms, list[float]]:
    outside = [_outside_us(one) for one in trials]
    known = [simulator.outside_us(one) for one in trials]
    more = _median([now - then for now, then in zip(outside, known, strict=True)])
    terms = Terms(
        # Rounded to less than a measurement can tell, so that the same is not simulated again.
        contention=round(_median([simulator.contention(one, rows=rows) for one in trials]), 2),
        overhead_us=OVERHEAD_STEP_US * round(max(-min(known), more) / OVERHEAD_STEP_US),
    )
    predicted: dict[tuple[Candidate, str], Prediction] = {}
    rates, tails = [], []
    for one in trials:
        key = one.candidate, one.load
        if key not in predicted:
            traffic = Traffic.parse(one.load, rows=rows)
            predicted[key] = simulator.predict(one.candidate, traffic, terms, requests=requests)
        offered = Traffic.parse(one.load).rate_per_s * rows
        reached = min(one.throughput_rows_per_s, predicted[key].throughput_rows_per_s)
        if offered and reached >= OPEN_CARRIED * offered:
            rates.append(1.0)  # what both carried, chance alone made larger or smaller
        else:
            rates.append(one.throughput_rows_per_s / max(predicted[key].throughput_rows_per_s, 1e-9))
        # Where a request was never answered, or the queue grew to the end, the tail says how long the trial was.
        if math.isfinite(p99_ms(one)) and (not offered or reached >= OPEN_CARRIED * offered):
            tails.append(p99_ms(one) / max(predicted[key].percentiles_ms[99], 1e-9))
    rate = max(_median(rates), 1e-3)
    found = Terms(
        contention=terms.contention, overhead_us=terms.overhead_us, rate=rate, tail=_median(tails) if tails else 1.0
    )
    return found, [math.log(max(one, 1e-9) / rate) for one in rates]


def _outside_us(trial: Trial) -> float:
    """Time of a request but for its queue and the computing: of a closed loop's whole cycle (Little's law)."""
    answered = [us for us in trial.latencies_us if math.isfinite(us)]
    counted, traffic = trial.counted, Traffic.parse(trial.load)
    inside = counted.queue_ns + counted.compute_input_ns + counted.compute_infer_ns
    if not answered:
        return 0.0
    cycle = trial.seconds / len(answered) * 1e6 * traffic.clients if not traffic.open else float(np.mean(answered))
    return max(0.0, cycle - counted.per_request_us(inside))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
