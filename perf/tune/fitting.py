"""Fits the corrections of the simulation to trials, and finds how wrong it is for a configuration without a trial.

What a fit leaves over in its own trials says little: one trial of each parallelism leaves nothing. So each measured
configuration is predicted from the trials of the others (leave-one-out cross-validation), as unmeasured ones are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.records.traffic import Traffic
from perf.tune.simulator import Correction, Corrections, Simulator
from perf.tune.space import Parallelism

# Contention and overhead are rounded to less than a trial can tell, so that predictions are reused.
OVERHEAD_STEP_US = 50.0
# A random open load of a few seconds brings a few percent more or less than its rate.
OPEN_CARRIED = 0.9


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Measured over predicted figures of one trial; None where the trial says nothing on the model.

    That is the throughput of an open load that both carried, and a p99 without answers or of a queue that grew to the
    end of the trial.
    """

    throughput: float | None
    p99: float | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fits with `simulator` to trials with `rows` rows a request; each prediction simulates `requests` requests."""

    simulator: Simulator
    rows: int
    requests: int

    def corrections(self, trials: Sequence[Trial]) -> Corrections:
        """Return one correction for each measured parallelism, their median as the default, and the errors."""
        if not trials:
            return Corrections()
        fitted = self._fitted(trials)
        errors = self._cross_validated(trials)
        return replace(
            fitted,
            throughput_error=_rms([each.throughput for each in errors]),
            p99_error=_rms([each.p99 for each in errors]),
        )

    def _fitted(self, trials: Sequence[Trial]) -> Corrections:
        groups: dict[Parallelism, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(Parallelism.of(trial.candidate), []).append(trial)
        corrections = {parallelism: self._correction(group) for parallelism, group in groups.items()}
        default = Correction(
            contention=_median([correction.contention for correction in corrections.values()]),
            overhead_us=_median([correction.overhead_us for correction in corrections.values()]),
            throughput=_median([correction.throughput for correction in corrections.values()]),
            p99=_median([correction.p99 for correction in corrections.values()]),
        )
        return Corrections(by_parallelism=corrections, default=default)

    def _cross_validated(self, trials: Sequence[Trial]) -> list[Ratios]:
        """Return measured over predicted for each candidate and load, predicted without any trial of the candidate."""
        left_out = dict.fromkeys(trial.candidate for trial in trials)
        return [
            ratios
            for candidate in left_out
            if (others := [trial for trial in trials if trial.candidate != candidate])
            for ratios in self._missed(candidate, trials, self._fitted(others).of(candidate))
        ]

    def _missed(self, candidate: Candidate, trials: Sequence[Trial], correction: Correction) -> list[Ratios]:
        loads: dict[str, list[Ratios]] = {}
        for trial in trials:
            if trial.candidate == candidate:
                loads.setdefault(trial.load, []).append(self._ratios(trial, correction))
        return [
            Ratios(
                throughput=_mean([each.throughput for each in ratios], correction.throughput),
                p99=_mean([each.p99 for each in ratios], correction.p99),
            )
            for ratios in loads.values()
        ]

    def _correction(self, trials: Sequence[Trial]) -> Correction:
        """Return the correction for trials of one parallelism."""
        inputs = self._inputs(trials)
        ratios = [self._ratios(trial, inputs) for trial in trials]
        throughputs = [1.0 if each.throughput is None else each.throughput for each in ratios]
        p99s = [each.p99 for each in ratios if each.p99 is not None]
        return replace(inputs, throughput=max(_median(throughputs), 1e-3), p99=_median(p99s) if p99s else 1.0)

    def _ratios(self, trial: Trial, inputs: Correction) -> Ratios:
        traffic = Traffic.of_record(trial.load, rows=self.rows)
        prediction = self.simulator.predict(trial.candidate, traffic, inputs, requests=self.requests)
        predicted = max(prediction.throughput_rows_per_s, 1e-9)
        offered = traffic.rate_per_s * self.rows
        carried = min(trial.throughput_rows_per_s, predicted) >= OPEN_CARRIED * offered
        p99 = trial.p99_ms / max(prediction.percentiles_ms[99], 1e-9)
        return Ratios(
            throughput=None if traffic.open and carried else max(trial.throughput_rows_per_s, 1e-9) / predicted,
            p99=p99 if math.isfinite(p99) and p99 > 0 and (carried or not traffic.open) else None,
        )

    def _inputs(self, trials: Sequence[Trial]) -> Correction:
        """Return contention and overhead."""
        profiled = [self.simulator.outside_us(trial) for trial in trials]
        more = _median([_outside_us(trial) - outside for trial, outside in zip(trials, profiled, strict=True)])
        contention = _median([self.simulator.contention(trial, rows=self.rows) for trial in trials])
        overhead_us = OVERHEAD_STEP_US * round(max(-min(profiled), more) / OVERHEAD_STEP_US)
        return Correction(contention=round(contention, 2), overhead_us=overhead_us)


def _outside_us(trial: Trial) -> float:
    """Return a request's mean microseconds outside queue and execution; a closed loop's cycle is by Little's law."""
    answered = trial.latencies[np.isfinite(trial.latencies)]
    counted, traffic = trial.counted, Traffic.of_record(trial.load)
    inside = counted.queue_ns + counted.compute_input_ns + counted.compute_infer_ns
    if not len(answered):
        return 0.0
    cycle = trial.seconds / len(answered) * 1e6 * traffic.clients if not traffic.open else float(np.mean(answered))
    return max(0.0, cycle - counted.per_request_us(inside))


def _mean(ratios: Sequence[float | None], factor: float) -> float | None:
    """Return the geometric mean of the known ratios over `factor`; None if none is known."""
    known = [math.log(ratio / factor) for ratio in ratios if ratio is not None]
    return math.exp(float(np.mean(known))) if known else None


def _rms(ratios: Sequence[float | None]) -> float | None:
    """Return the root mean square of the logarithms of the known ratios; None if none is known."""
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.sqrt(float(np.mean(np.square(logs)))) if logs else None


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
