"""Confidence intervals of percentiles, without an assumed distribution and for requests that depend on each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `special` is loaded at the first interval

from perf.stats.dependence import design_effect
from perf.stats.interval import LEVEL
from perf.stats.percentile import percentile


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """The latency that `percent` of `n` requests do not exceed, with its confidence interval, in milliseconds.

    `high_ms` is infinite if the sample is too small to bound it, or if the request at the bound got no answer. The
    requests are worth `n` / `design_effect` independent ones.
    """

    percent: float
    n: int
    value_ms: float
    low_ms: float
    high_ms: float
    design_effect: float


def quantile(latencies_us: Sequence[float], percent: float, confidence: float = LEVEL) -> Quantile:
    """The percentile between the two order statistics that bound it with probability `confidence`.

    The latencies are of one run, in order of time. The number of requests above the percentile is binomial if they are
    independent, and its quantiles are the ranks of the bounds (David and Nagaraja, Order Statistics, section 7.1); for
    others it is that of as many requests as they are worth (`perf.stats.dependence`). The interval is for this run's
    conditions: what changes from run to run is not in it.
    """
    ordered = np.sort(np.asarray(latencies_us, dtype=np.float64)) / 1e3
    n, share, error = len(ordered), 1 - percent / 100, (1 - confidence) / 2
    if not n:
        return Quantile(percent=percent, n=0, value_ms=math.inf, low_ms=0.0, high_ms=math.inf, design_effect=1.0)
    effect = design_effect(latencies_us, share)
    above = np.arange(n) / effect
    # The binomial distribution function, continued between whole numbers by the incomplete beta function.
    at_most = scipy.special.betainc(n / effect - above, above + 1, 1 - share)
    few = int(np.searchsorted(at_most, error, side="right")) - 1
    many = int(np.searchsorted(at_most, 1 - error)) + math.ceil(effect)
    return Quantile(
        percent=percent,
        n=n,
        value_ms=float(percentile(ordered, percent)),
        low_ms=float(ordered[n - many]) if many <= n else 0.0,
        high_ms=float(ordered[n - few - 1]) if few >= 0 else math.inf,
        design_effect=effect,
    )
