"""The interval on the ratio of a statistic of two runs, by a seeded bootstrap of blocks of their requests.

Latencies of neighbouring requests are alike, so blocks are resampled. `scipy.stats.bootstrap` resamples single values.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from perf.stats.dependence import autocovariances, cut_off, flat_top, longest
from perf.stats.interval import LEVEL, Interval, exponential

Values = NDArray[np.float64]
# (..., n) -> (...): a statistic of the last axis.
Statistic = Callable[[Values], Values]
RESAMPLES = 4000
# Larger values count as this one in the choice of a block length, so that their fourth powers are finite.
HUGE = 1e60
# Elements of one matrix of resamples: 32 MiB.
CHUNK = 1 << 22


def series(
    new: Sequence[float], old: Sequence[float], statistic: Statistic, *, level: float = LEVEL, seed: int = 0
) -> Interval:
    """`statistic` of `new` over that of `old`; each side holds the values of one run, in their order.

    Percentile interval of the circular block bootstrap (Politis and Romano, 1992), which keeps the correlation within
    blocks. The interval does not cover differences between runs. A run without values has none.
    """
    count = min(len(new), len(old))
    if not count:
        return Interval(value=math.nan, low=0.0, high=math.inf, level=level, count=0, method="no interval")
    rng = np.random.default_rng(seed)
    sides = [np.asarray(side, dtype=np.float64) for side in (new, old)]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [np.log(statistic(side)) for side in sides]
        resamples = [np.log(_blocks(side, statistic, rng)) for side in sides]
        # Infinite over infinite is not a number; the interval is then unbounded.
        value, ratios = float(values[0] - values[1]), resamples[0] - resamples[1]
    return _interval(value, ratios, (1 - level) / 2, level, count, "percentile, blocks")


def mean(values: Values) -> Values:
    """The mean of the last axis, a statistic for `series`: of counts it is a rate."""
    return np.asarray(np.mean(values, axis=-1), dtype=np.float64)


def block_length(values: Values) -> int:
    """The length of a block for the circular block bootstrap, from the autocovariances of `values`.

    Politis and White, Automatic Block-Length Selection, Econometric Reviews 23, 2004, as corrected by Patton, Politis
    and White, 2009. They sum up to twice the lag after which the autocovariance is insignificant.
    """
    count = len(values)
    covariance = autocovariances(values)
    if count < 8 or covariance[0] <= 1e-12 * max(1.0, float(np.mean(values)) ** 2):
        return 1
    width = cut_off(covariance)
    lag = np.arange(1, width + 1)
    window = flat_top(lag / width)
    slope = 2 * float(np.sum(window * lag * covariance[1 : width + 1]))
    at_zero = float(covariance[0] + 2 * np.sum(window * covariance[1 : width + 1]))
    most = longest(count)
    length = (2 * slope**2 / (4 / 3 * at_zero**2)) ** (1 / 3) * count ** (1 / 3) if at_zero else most
    return int(min(max(1, math.ceil(length)), most))


def picks(count: int, length: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The indices of resamples of `count` values in blocks of `length` that go round the end: (`resamples`, count)."""
    begins = rng.integers(0, count, (resamples, -(-count // length), 1))
    return np.asarray((begins + np.arange(length)) % count).reshape(resamples, -1)[:, :count]


def _blocks(values: Values, statistic: Statistic, rng: np.random.Generator) -> Values:
    """The statistic of `RESAMPLES` resamples that are made of blocks: (`RESAMPLES`,)."""
    count = len(values)
    # A percentile depends on which values are above it, so the block length covers the correlation of that as well.
    over = (values > statistic(values)).astype(np.float64)
    finite = np.where(np.isfinite(values), values, np.max(values[np.isfinite(values)], initial=0.0))
    finite = np.minimum(finite, HUGE)
    length = max(block_length(finite), block_length(over))
    each = max(1, CHUNK // (-(-count // length) * length))
    starts = range(0, RESAMPLES, each)
    return np.concatenate(
        [statistic(values[picks(count, length, min(each, RESAMPLES - start), rng)]) for start in starts]
    )


def _interval(value: float, ratios: Values, outer: float, level: float, count: int, method: str) -> Interval:
    bounded = np.all(np.isfinite(ratios))
    low, high = np.quantile(ratios, [outer, 1 - outer]) if bounded else (-math.inf, math.inf)
    return Interval(
        value=exponential(value) if math.isfinite(value) else math.nan,
        low=exponential(low),
        high=exponential(high),
        level=level,
        count=count,
        method=method,
    )
