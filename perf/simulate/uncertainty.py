"""The interval of a prediction: where one measurement of the configuration will be, with a probability of 90 %.

The simulation is repeated with everything that the profile leaves open: service times within their errors, sizes that
were not seen, the constants that no profile shows, the drift of the machine from round to round, and the seed of the
arrivals. Each repetition is as long as the measurement. Its throughput and percentiles are about log-normal, so the
interval is that of the next value of such a sample (Hahn and Meeker, Statistical Intervals, 1991, 4.7).

No simulation knows what it leaves out. By how much single measurements of models that it had never seen were outside
is known (`MISFIT`; split conformal prediction with normalised scores: Lei, G'Sell, Rinaldo, Tibshirani and Wasserman,
Journal of the American Statistical Association 113, 2018, 1094).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `special` is loaded at the first interval
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile, ServiceTimes
from perf.measure.service_way import Way
from perf.records.candidate import Candidate
from perf.records.traffic import Traffic
from perf.simulate.predict import WARM_UP, simulated_run
from perf.simulate.simulated_run import PERCENTILES, SimulatedRun
from perf.stats.percentile import percentile
from perf.stats.verdict import MARGIN

LEVEL = 0.9
OUTER = (1 + LEVEL) / 2
DRAWS = 12
# A measurement is simulated with at least and at most so many requests.
REQUESTS = (200, 20_000)
# The drift between rounds is at least that between the levels of one ramp, and at least that of a quiet machine, on
# which two measurements differ by about `MARGIN`. With one round that is all there is, and counts as much as so many
# rounds; with several it counts as one, so that two rounds that happen to agree do not count as none. More would hide
# the drift of a machine with slow phases, which one ramp does not see.
LEAST_DRIFT, ROUNDS_BEFORE, ROUNDS_BESIDE = MARGIN / math.sqrt(2), 4, 1
# Nine of ten single measurements of nine random models were within so many half widths of the intervals that earlier
# stages of this simulation had printed for them.
MISFIT = 1.72


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Two bounds that hold the measured value with probability `LEVEL`."""

    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """Both bounds as numbers of this format."""
        return f"{self.low:{spec}} to {self.high:{spec}}"

    def hold(self, value: float) -> bool:
        """Whether the value is within them."""
        return self.low <= value <= self.high

    def widened(self, factor: float) -> "Bounds":
        """The same `factor` times as wide on both sides; on logarithms."""
        middle, half = math.sqrt(self.low * self.high), math.sqrt(self.high / self.low)
        return Bounds(low=middle / half**factor, high=middle * half**factor)

    @classmethod
    def of(cls, values: Sequence[float]) -> "Bounds":
        """The bounds of the next value of a sample, all above 0; t on the logarithms."""
        logs = np.log(np.maximum(np.asarray(values, dtype=np.float64), 1e-12))
        count = len(logs)
        quantile = float(scipy.special.stdtrit(count - 1, OUTER))
        half = quantile * float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / count)
        return cls(low=math.exp(float(np.mean(logs)) - half), high=math.exp(float(np.mean(logs)) + half))


@dataclass(frozen=True, kw_only=True)
class PredictedBounds:
    """The bounds of one measurement: rows per second, and 50, 90, 95 and 99 -> milliseconds."""

    throughput_rows_per_s: Bounds
    percentiles_ms: Mapping[int, Bounds]


def bounds(
    candidate: Candidate,
    config: ModelConfig,
    traffic: Traffic,
    profile: Profile,
    *,
    seconds: float,
    throughput_rows_per_s: float,
    draws: int = DRAWS,
    seed: int = 0,
    way: Way | None = None,
    drift: float = 0.0,
) -> PredictedBounds:
    """The bounds of a measurement of `seconds`; `throughput_rows_per_s` is about what is expected in it.

    The machine's speed differs from moment to moment by a standard deviation of `drift`, as a share, or more. What the
    repetitions span is widened by the factor `MISFIT`. The other arguments are those of `perf.simulate.predict`.
    """
    ramp = profile.of(candidate)
    expected = round(throughput_rows_per_s / traffic.rows * seconds / (1 - WARM_UP))
    requests = max(REQUESTS[0], min(REQUESTS[1], expected))
    runs = []
    for number, slower in enumerate(drifts(ramp, draws, drift)):
        runs.append(
            simulated_run(
                candidate,
                config,
                traffic,
                profile,
                requests=requests,
                seed=seed + 1 + number,
                # A slow machine is slow at both ends.
                way=(way or ramp.way).stretched(slower),
                stretch=slower,
                drawn=np.random.default_rng([seed, number, 1]),
                runs=1,
            )
        )
    return _bounds(runs, traffic.rows)


def drifts(ramp: ServiceTimes, draws: int, least: float = 0.0) -> list[float]:
    """Factors by which the machine's times at another moment differ from those of the profile, in no order.

    They are evenly spaced quantiles, wide enough for the error of the drift itself (t instead of normal).
    """
    before = ROUNDS_BEFORE if ramp.rounds == 1 else ROUNDS_BESIDE
    freedom = before + ramp.rounds - 1
    known, between = max(LEAST_DRIFT, least, ramp.burden.drift), max(least, ramp.drift)
    variance = (before * known**2 + (ramp.rounds - 1) * between**2) / freedom
    wider = float(scipy.special.stdtrit(freedom, OUTER) / scipy.special.ndtri(OUTER))
    quantiles = scipy.special.ndtri((np.arange(draws) + 0.5) / draws)
    return np.exp(math.sqrt(variance * (1 + 1 / ramp.rounds)) * wider * quantiles).tolist()  # type: ignore[no-any-return]


def _bounds(runs: Sequence[SimulatedRun], rows: int) -> PredictedBounds:
    return PredictedBounds(
        throughput_rows_per_s=Bounds.of([run.throughput_per_s * rows for run in runs]).widened(MISFIT),
        percentiles_ms={
            percent: Bounds.of([float(percentile(run.latencies_us, percent)) / 1e3 for run in runs]).widened(MISFIT)
            for percent in PERCENTILES
        },
    )
