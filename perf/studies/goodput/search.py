"""The search for the highest rate at which 99 % of the requests are in time, for simulated and measured trials."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

GOOD = 0.99
STEP, CLOSE, MOST = 1.08, 1.085, 9
HALVINGS, AROUND = 8, tuple(np.linspace(0.8, 1.25, 13).tolist())


@dataclass(frozen=True, kw_only=True)
class RateTrial:
    """A trial at one rate (requests per second): `late` of `requests` were not answered in time, or not at all."""

    rate_per_s: float
    requests: int
    late: int

    @property
    def missed(self) -> float:
        """The share of late requests."""
        return self.late / self.requests if self.requests else 1.0

    @property
    def good(self) -> bool:
        """Whether 99 % were in time."""
        return self.missed <= 1 - GOOD + 1e-12


def following(points: Sequence[RateTrial], guess: float) -> float | None:
    """The rate to measure next; None after nine trials, or with the edge between two rates within 8 % of each other.

    From `guess` up or down in growing steps until the edge is between two rates, then halfway between them.
    """
    if not points:
        return guess
    good = max((point.rate_per_s for point in points if point.good), default=0.0)
    bad = min((point.rate_per_s for point in points if not point.good), default=math.inf)
    if len(points) >= MOST or (good and bad < math.inf and max(good, bad) / min(good, bad) <= CLOSE):
        return None
    step = float(np.power(STEP, 2 ** (len(points) - 1)))
    if bad == math.inf:
        return good * step
    if not good:
        return bad / step
    # With noise a good rate can be above a bad one. The edge is still between the two.
    return math.sqrt(good * bad)


def swept(measure: Callable[[float], RateTrial], low: float, high: float) -> float:
    """The edge for cheap trials: by halving in [`low`, `high`], then by regression over trials around the result.

    The share of late requests does not rise evenly with the rate, so halving alone finds any of several crossings.
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle).good else (low, middle)
    points = [measure(low * factor) for factor in AROUND] if low else []
    return edge(points) or low


def edge(points: Sequence[RateTrial]) -> float | None:
    """The rate with 1 % late requests, on straight lines between trials; None if all are on one side.

    The true share of late requests cannot fall with the rate: neighbours whose shares do are pooled, weighted by their
    requests (isotonic regression).
    """
    if not points or all(point.good for point in points) or not any(point.good for point in points):
        return None
    ordered = sorted(points, key=lambda point: point.rate_per_s)
    rates = np.array([point.rate_per_s for point in ordered])
    weights = np.array([max(1, point.requests) for point in ordered], dtype=np.float64)
    fit = isotonic_regression([point.missed for point in ordered], weights=weights)
    pools = fit.blocks[:-1]
    pooled_rates = np.add.reduceat(rates * weights, pools) / np.add.reduceat(weights, pools)
    return float(np.interp(1 - GOOD, fit.x[pools], pooled_rates))
