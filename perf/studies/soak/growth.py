"""Whether a series of readings grows: the rule of a soak.

The first third of a run is warm-up and does not count. The growth over the rest (the window) is the Theil-Sen slope,
the median of the slopes between all pairs of readings, times the window's length; a few outliers do not change it. Its
standard error comes from 200 resamples by a circular block bootstrap of the residuals, because successive readings are
correlated. The intervals of all series together contain the true growths with 95 % confidence (Bonferroni). A series

    grows         if the whole interval is above the limit: 5 % of its median + 4 MiB, or + 3 for counts
    is flat       if the whole interval is at most the limit
    cannot tell   otherwise: the run was too short, or the readings too noisy
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `special` is loaded at the first verdict
from numpy.typing import NDArray

from perf.stats.dependence import autocovariances, cut_off, flat_top, longest
from perf.stats.verdict import CANNOT_TELL, level_of_each

Values = NDArray[np.float64]
WARM_UP = 1 / 3
RESAMPLES = 200
ALLOWED_SHARE, ALLOWED_BYTES, ALLOWED_COUNT = 0.05, 4 << 20, 3.0
# Fewer readings get no verdict.
LEAST = 10
GROWS, FLAT = "grows", "flat"
BYTES = "bytes"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The verdict on one series. `first` and `last` are medians of the window's first and last tenth.

    `growth` is over the window; `low` and `high` are the ends of its interval, None for too few readings. All are in
    `unit`, `per_hour` in units per hour.
    """

    series: str
    unit: str
    readings: int
    window_s: float
    first: float
    last: float
    growth: float
    per_hour: float
    low: float | None
    high: float | None
    allowed: float

    @property
    def verdict(self) -> str:
        """GROWS, FLAT or CANNOT_TELL."""
        if self.low is None or self.high is None:
            return CANNOT_TELL
        if self.low > self.allowed:
            return GROWS
        return FLAT if self.high <= self.allowed else CANNOT_TELL


def judge(
    series: str,
    unit: str,
    times: Sequence[float],
    values: Sequence[float],
    *,
    warm_s: float,
    of: int = 1,
    seed: int = 0,
) -> Growth:
    """Judge readings at `times` (seconds); those before `warm_s` do not count. `of` series are judged together."""
    at = np.asarray(times, dtype=np.float64)
    counts = at >= warm_s
    at, readings = at[counts], np.asarray(values, dtype=np.float64)[counts]
    window = float(at[-1] - at[0]) if len(at) > 1 else 0.0
    slope, error = _slope(at, readings, seed) if len(readings) >= LEAST else (0.0, math.inf)
    half = error * window * float(scipy.special.ndtri((1 + level_of_each(of)) / 2))
    tenth = max(1, len(readings) // 10)
    return Growth(
        series=series,
        unit=unit,
        readings=len(readings),
        window_s=round(window, 1),
        first=_median(readings[:tenth]),
        last=_median(readings[-tenth:]),
        growth=slope * window,
        per_hour=slope * 3600,
        low=slope * window - half if math.isfinite(half) else None,
        high=slope * window + half if math.isfinite(half) else None,
        allowed=ALLOWED_SHARE * _median(readings) + (ALLOWED_BYTES if unit == BYTES else ALLOWED_COUNT),
    )


def _median(values: Values) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _slope(at: Values, readings: Values, seed: int) -> tuple[float, float]:
    """The Theil-Sen slope and its standard error, per second."""
    first, second = np.triu_indices(len(at), 1)
    apart = at[second] - at[first]

    def slopes(values: Values) -> Values:
        return np.asarray(np.median((values[..., second] - values[..., first]) / apart, axis=-1), dtype=np.float64)

    slope = float(slopes(readings))
    line = slope * (at - at[0])
    residuals = readings - line
    residuals -= np.median(residuals)
    picked = _picks(len(at), block_length(residuals), np.random.default_rng(seed))
    # In ten parts, which take less memory.
    parts = [slopes(line + residuals[indices]) for indices in np.array_split(picked, 10)]
    return slope, float(np.std(np.concatenate(parts), ddof=1))


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


def _picks(count: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The indices of resamples of `count` values in blocks of `length` that go round the end: (`RESAMPLES`, count)."""
    begins = rng.integers(0, count, (RESAMPLES, -(-count // length), 1))
    return np.asarray((begins + np.arange(length)) % count).reshape(RESAMPLES, -1)[:, :count]
