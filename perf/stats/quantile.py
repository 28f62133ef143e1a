"""A percentile of latencies with an interval that assumes nothing about their distribution."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perf.stats.percentile import percentile
from perf.stats.sla import judge

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """The latency that `percent` of `n` requests do not exceed, and its confidence interval; milliseconds.

    `high_ms` is infinite where the sample is too small to bound it, or where requests that bound it were not answered.
    """

    percent: float
    n: int
    value_ms: float
    low_ms: float
    high_ms: float


def percentile_ms(latencies_us: Sequence[float], percent: float) -> float:
    """The order statistic of rank ceil(n p), milliseconds; infinite for none, and where it was not answered."""
    return float(percentile(latencies_us, percent)) / 1e3


def quantile(latencies_us: Sequence[float], percent: float, confidence: float = CONFIDENCE) -> Quantile:
    """The percentile, between the order statistics that bound it with `confidence`.

    The bounds are the latencies at which the rule that judges a latency target passes and fails, each with half of the
    error (David and Nagaraja, Order Statistics, section 7.1). Requests are taken as independent; those of one batch are
    not, so the true interval is wider.
    """
    ordered = np.sort(np.asarray(latencies_us, dtype=np.float64)) / 1e3
    n, share, sure = len(ordered), 1 - percent / 100, 1 - (1 - confidence) / 2
    if not n:
        return Quantile(percent=percent, n=0, value_ms=math.inf, low_ms=0.0, high_ms=math.inf)
    # So many slower requests are too few, or too many, for a target at the latency in question.
    few = _first(n + 1, lambda late: judge(n, late, share, sure) is not True) - 1
    many = _first(n + 1, lambda late: judge(n, late, share, sure) is False)
    return Quantile(
        percent=percent,
        n=n,
        value_ms=float(percentile(ordered, percent)),
        low_ms=float(ordered[n - many]) if many <= n else 0.0,
        high_ms=float(ordered[n - few - 1]) if few >= 0 else math.inf,
    )


def _first(end: int, holds: Callable[[int], bool]) -> int:
    """The first number of 0 to `end` from which on it holds; `end` where it never does."""
    low, high = -1, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
