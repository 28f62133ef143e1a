"""What one replica does at each load: its requests in flight, and the share in time.

The points come from `perf.simulate`, request by request, with Poisson arrivals.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget
from perf.records.traffic import Traffic
from perf.simulate.predict import simulated_run
from perf.simulate.simulated_run import SimulatedRun
from serve.policies.queue_limit import KEPT, KEY
from triton_batching.terminal import Mistake

# Rates at which a replica is simulated, as shares of the rate at which it saturates.
SHARES = (0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97)
# Steps of the search for the capacity between two of these rates.
HALVINGS = 4
REQUESTS = 12_000
# A closed loop of so many full batches per instance saturates a replica.
FULL_BATCHES = 4
# The steepness is that between this share of the capacity and the capacity.
LOW = 0.6
# Quantiles that are kept of the latencies at the capacity.
QUANTILES = 201

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One replica under Poisson arrivals.

    pending: requests in flight on average. in_time: the share within the latency target.
    """

    rate_per_s: float
    pending: float
    in_time: float


@dataclass(frozen=True, kw_only=True)
class ReplicaCurve:
    """One replica from idle to saturation.

    points: by rising rate, the one at the capacity among them. saturated_per_s: the most requests that it answers.
    capacity: the point with the highest rate that meets the latency target.
    latencies_ms: evenly spaced quantiles of the latency at the capacity.
    most_wait_s: a request that would wait longer is refused (`queue_limit_ms`); None without a limit.
    """

    model: str
    config_name: str
    target_ms: float
    percent: float
    points: tuple[CurvePoint, ...]
    capacity: CurvePoint
    saturated_per_s: float
    latencies_ms: tuple[float, ...]
    most_wait_s: float | None

    @property
    def target_pending(self) -> float:
        """Requests in flight at a replica at its capacity: by Little's law its rate x the mean latency."""
        return self.capacity.pending

    @property
    def steepness(self) -> float:
        """How fast the requests in flight grow with the load: pending ~ load ^ steepness, up to the capacity."""
        low = float(np.interp(LOW * self.capacity.rate_per_s, self.column(_rate), self.column(_pending)))
        return max(1.0, math.log(self.target_pending / low) / math.log(1 / LOW))

    @property
    def most_pending(self) -> float:
        """Requests in flight at which a replica refuses more; infinite without a limit."""
        if self.most_wait_s is None:
            return float("inf")
        return max(self.points[-1].pending, self.saturated_per_s * self.most_wait_s)

    def faster(self, factor: float) -> "ReplicaCurve":
        """The same replica at `factor` times the rates, as if more of it ran side by side."""
        points = tuple(_faster(point, factor) for point in self.points)
        capacity, saturated = _faster(self.capacity, factor), self.saturated_per_s * factor
        return replace(self, points=points, capacity=capacity, saturated_per_s=saturated)

    def column(self, of: Callable[[CurvePoint], float]) -> Values:
        """One value of all points."""
        return np.array([of(point) for point in self.points])


def _rate(point: CurvePoint) -> float:
    return point.rate_per_s


def _pending(point: CurvePoint) -> float:
    return point.pending


def _faster(point: CurvePoint, factor: float) -> CurvePoint:
    return replace(point, rate_per_s=point.rate_per_s * factor, pending=point.pending * factor)


def measure(
    config: ModelConfig,
    profile: Profile,
    target: LatencyTarget,
    *,
    config_name: str = "default",
    requests: int = REQUESTS,
    tick: Callable[[], None] = lambda: None,
) -> ReplicaCurve:
    """The curve of a replica that serves `config`; `tick` is called after each of `simulations()` simulations.

    Each request has one row. requests: of each simulation.
    Raises `Mistake` if even a lone request misses the target.
    """
    candidate = Candidate.of(config)

    def run(traffic: Traffic) -> SimulatedRun:
        simulated = simulated_run(candidate, config, traffic, profile, requests=requests)
        tick()
        return simulated

    clients = FULL_BATCHES * candidate.instances * max(1, candidate.max_batch_size)
    saturated = run(Traffic(pattern="closed", clients=clients)).throughput_per_s

    def at(rate: float) -> tuple[CurvePoint, Values]:
        simulated = run(Traffic(pattern="poisson", rate_per_s=rate))
        return _point(rate, simulated, target), simulated.latencies_us / 1e3

    found = [at(share * saturated) for share in SHARES]
    capacity, latencies = _capacity(found, at, target, config.name)
    points = sorted({point.rate_per_s: point for point in (*(point for point, _ in found), capacity)}.items())
    limit = config.parameters[KEY].string_value if KEY in config.parameters else ""
    return ReplicaCurve(
        model=config.name,
        config_name=config_name,
        target_ms=target.latency_ms,
        percent=target.percent,
        points=_rising([point for _, point in points]),
        capacity=capacity,
        saturated_per_s=saturated,
        latencies_ms=tuple(np.quantile(latencies, np.linspace(0, 1, QUANTILES)).tolist()),
        most_wait_s=KEPT * float(limit) / 1e3 if limit else None,
    )


def simulations() -> int:
    """How many simulations `measure` runs."""
    return 1 + len(SHARES) + HALVINGS


def _point(rate: float, simulated: SimulatedRun, target: LatencyTarget) -> CurvePoint:
    served = simulated.latencies_us
    in_time = int(np.sum(served <= target.latency_ms * 1e3))
    return CurvePoint(
        rate_per_s=rate,
        pending=rate * simulated.mean_us / 1e6,
        in_time=in_time / max(1, len(served) + simulated.refused),
    )


def _capacity(
    found: Sequence[tuple[CurvePoint, Values]],
    at: Callable[[float], tuple[CurvePoint, Values]],
    target: LatencyTarget,
    model: str,
) -> tuple[CurvePoint, Values]:
    """The highest rate in time, with its latencies: between two points by halving."""
    enough = 1 - target.share
    late = next((number for number, (point, _) in enumerate(found) if point.in_time < enough), len(found))
    if late == 0:
        p99 = float(np.quantile(found[0][1], enough))
        raise Mistake(
            f"{model}: a lone request takes {p99:.1f} ms at the {target.percent:g}th percentile, above the target of "
            f"{target.latency_ms:g} ms, so no number of replicas meets it. Raise p99_ms."
        )
    best = found[late - 1]
    if late == len(found):
        return best
    low, high = best[0].rate_per_s, found[late][0].rate_per_s
    for _ in range(HALVINGS):
        tried = at((low + high) / 2)
        if tried[0].in_time >= enough:
            best, low = tried, tried[0].rate_per_s
        else:
            high = tried[0].rate_per_s
    return best


def _rising(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The points with requests in flight that rise and a share in time that falls, as both do without noise."""
    pending = np.maximum.accumulate([point.pending for point in points]) + 1e-9 * np.arange(len(points))
    in_time = np.minimum.accumulate([point.in_time for point in points])
    return tuple(
        replace(point, pending=float(flying), in_time=float(share))
        for point, flying, share in zip(points, pending, in_time, strict=True)
    )
