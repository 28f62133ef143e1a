"""Searching the highest rate at which 99 % of the requests are in time, for simulated and for measured points."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

GOOD = 0.99
STEP, CLOSE, MOST = 1.08, 1.085, 9
HALVINGS, AROUND = 8, tuple(np.linspace(0.8, 1.25, 13).tolist())


@dataclass(frozen=True, kw_only=True)
class RateTrial:
    """One measured rate (requests per second): `late` of `requests` were not answered in time, or not at all."""

    rate_per_s: float
    requests: int
    late: int

    @property
    def missed(self) -> float:
        """Share of late ones."""
        return self.late / self.requests if self.requests else 1.0

    @property
    def good(self) -> bool:
        """Whether 99 % were in time."""
        return self.missed <= 1 - GOOD + 1e-12


def following(points: Sequence[RateTrial], guess: float) -> float | None:
    """The rate to measure next: from `guess` up or down in growing steps until the edge is between two, then halfway.

    None when the two are within 8 % of each other, since between them a line is good enough, or after nine points.
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
    # With noise a rate can be good above a rate that is not. The edge is still between the two.
    return math.sqrt(good * bad)


def swept(measure: Callable[[float], RateTrial], low: float, high: float) -> float:
    """The edge, if points are cheap: by halving in [`low`, `high`], then by regression over points around the result.

    With a finite number of requests the share of late requests does not rise evenly with the rate, so halving alone
    finds any of several crossings.
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle).good else (low, middle)
    points = [measure(low * factor) for factor in AROUND] if low else []
    return edge(points) or low


def edge(points: Sequence[RateTrial]) -> float | None:
    """The rate at which 1 % are missed, on straight lines between the measured points; None when all are on one side.

    What is missed cannot fall with the rate: where noise has it so, neighbours are pooled (isotonic regression by
    pooling adjacent violators, weighted by the requests).
    """
    if not points or all(point.good for point in points) or not any(point.good for point in points):
        return None
    pools: list[tuple[float, float, float]] = []  # mean rate, share missed, weight
    for point in sorted(points, key=lambda point: point.rate_per_s):
        pools.append((point.rate_per_s, point.missed, float(point.requests)))
        while len(pools) > 1 and pools[-2][1] >= pools[-1][1]:
            (rate, missed, weight), (other_rate, other_missed, other) = pools[-2:]
            both = weight + other
            pools[-2:] = [
                ((rate * weight + other_rate * other) / both, (missed * weight + other_missed * other) / both, both)
            ]
    return float(np.interp(1 - GOOD, [pool[1] for pool in pools], [pool[0] for pool in pools]))
