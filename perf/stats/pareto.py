"""The Pareto front of throughput against latency."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Point = TypeVar("Point")


def front(points: Sequence[Point], rate_and_latency: Callable[[Point], tuple[float, float]]) -> list[Point]:
    """The points for which no other has both a higher rate and a lower latency, by falling rate."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (-rate_and_latency(point)[0], rate_and_latency(point)[1])):
        if not best or rate_and_latency(point)[1] < rate_and_latency(best[-1])[1]:
            best.append(point)
    return best
