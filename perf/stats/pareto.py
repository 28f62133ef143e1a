"""The Pareto front of throughput against latency: what nothing else beats in both."""

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")


def front(points: Sequence[One], rate_and_latency: Callable[[One], tuple[float, float]]) -> list[One]:
    """Those that no other beats in both, by falling throughput and so by falling latency."""
    found: list[One] = []
    for one in sorted(points, key=lambda one: (-rate_and_latency(one)[0], rate_and_latency(one)[1])):
        if not found or rate_and_latency(one)[1] < rate_and_latency(found[-1])[1]:
            found.append(one)
    return found
