"""Intervals on the ratio of two measurements that were repeated in rounds: Student's t on the logarithms.

Most of the noise is between rounds (other work on the machine, the start of a server), so rounds are the sample, and
more of them make the interval shorter. The logarithm of a throughput or latency is nearly normal, and t is exact for a
normal one from two rounds on, where a bootstrap of five values holds the truth in 84 % of the cases where it says 95 %.

Rounds that are all equal have no interval: a measured value is never exactly the same twice, so they were rounded by
more than they vary, and how much they vary is not known. Two values that are rounded to their standard deviation are
equal in 27 % of the cases.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy  # its `special` is loaded at the first interval
from numpy.typing import NDArray

from perf.stats.interval import LEVEL, Interval, exponential

# Logarithms that differ by less are equal but for the floating point.
EQUAL = 1e-12


def paired(new: Sequence[float], old: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The geometric mean of `new` / `old` round by round; both (rounds,), all above 0.

    One round has no interval, and neither have rounds of equal ratios.
    """
    logs = np.log(np.asarray(new, dtype=np.float64)) - np.log(np.asarray(old, dtype=np.float64))
    count = len(logs)
    error = math.sqrt(_variance(logs) / count) if count else math.inf
    return _interval(float(np.mean(logs)), error, count - 1, count, level, "Student's t, rounds in pairs")


def unpaired(new: Sequence[float], old: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The geometric mean of `new` over that of `old`, for independent runs that are not in pairs (Welch's t).

    A side of one run has no interval, and neither has one of equal runs.
    """
    sides = [np.log(np.asarray(side, dtype=np.float64)) for side in (new, old)]
    count, value = min(map(len, sides)), float(np.mean(sides[0]) - np.mean(sides[1]))
    squares = [_variance(side) / len(side) for side in sides]
    if not math.isfinite(sum(squares)):
        return _interval(value, math.inf, 1, count, level, "")
    parts = [square**2 / (len(side) - 1) for square, side in zip(squares, sides, strict=True)]
    freedom = sum(squares) ** 2 / sum(parts)
    return _interval(value, math.sqrt(sum(squares)), freedom, count, level, "Welch's t, runs")


def mean(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The geometric mean of repeats (repeats,), all above 0. One has no interval, and neither have equal ones."""
    found = paired(values, [1.0] * len(values), level=level)
    return replace(found, method="Student's t, repeats") if found.bounded else found


def _variance(logs: NDArray[np.float64]) -> float:
    """The variance of one value; infinite if it is not known."""
    return float(np.var(logs, ddof=1)) if len(logs) > 1 and np.ptp(logs) > EQUAL else math.inf


def _interval(value: float, error: float, freedom: float, count: int, level: float, method: str) -> Interval:
    if not math.isfinite(error):
        return Interval(
            value=exponential(value), low=0.0, high=math.inf, level=level, count=count, method="no interval"
        )
    half = float(scipy.special.stdtrit(freedom, (1 + level) / 2)) * error
    low, high = exponential(value - half), exponential(value + half)
    return Interval(value=exponential(value), low=low, high=high, level=level, count=count, method=method)
