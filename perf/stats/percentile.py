"""Percentiles of latencies as order statistics, and their confidence intervals without an assumed distribution.

A percentile is a latency that was measured. It is infinite if that request got no answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `special` is loaded at the first interval
from numpy.typing import NDArray

CONFIDENCE = 0.95


def percentile(values: "Sequence[float] | NDArray[np.float64]", percent: float) -> NDArray[np.float64]:
    """The value of rank ceil(n p), the smallest that `percent` of the n values do not exceed: (..., n) -> (...).

    Infinite for n = 0. `numpy.percentile(method="inverted_cdf")` is the same but for its rank, which is one too high
    where n p is a whole number that floating point makes larger: 99.9 % of 1000 comes out as 999.0000000000001.
    """
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[-1]
    if not count:
        return np.full(values.shape[:-1], np.inf)
    rank = max(1, math.ceil(count * percent / 100 - 1e-9))
    return np.asarray(np.partition(values, rank - 1, axis=-1)[..., rank - 1])


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """The latency that `percent` of `n` requests do not exceed, with its confidence interval, in milliseconds.

    `high_ms` is infinite if the sample is too small to bound it, or if the request at the bound got no answer.
    """

    percent: float
    n: int
    value_ms: float
    low_ms: float
    high_ms: float


def percentile_ms(latencies_us: Sequence[float], percent: float) -> float:
    """The percentile in milliseconds; infinite for no latencies, and if the request at its rank got no answer."""
    return float(percentile(latencies_us, percent)) / 1e3


def quantile(latencies_us: Sequence[float], percent: float, confidence: float = CONFIDENCE) -> Quantile:
    """The percentile between the two order statistics that bound it with probability `confidence`.

    The number of requests above the percentile is binomial, so its quantiles are the ranks of the bounds (David and
    Nagaraja, Order Statistics, section 7.1). Requests are taken as independent. Those of one batch are not, so the
    true interval is wider.
    """
    ordered = np.sort(np.asarray(latencies_us, dtype=np.float64)) / 1e3
    n, share, error = len(ordered), 1 - percent / 100, (1 - confidence) / 2
    if not n:
        return Quantile(percent=percent, n=0, value_ms=math.inf, low_ms=0.0, high_ms=math.inf)
    at_most = scipy.special.bdtr(np.arange(n + 1), n, share)
    few = int(np.searchsorted(at_most, error, side="right")) - 1
    many = int(np.searchsorted(at_most, 1 - error)) + 1
    return Quantile(
        percent=percent,
        n=n,
        value_ms=float(percentile(ordered, percent)),
        low_ms=float(ordered[n - many]) if many <= n else 0.0,
        high_ms=float(ordered[n - few - 1]) if few >= 0 else math.inf,
    )
