"""How many independent requests a run is worth: the design effect of late requests.

Requests of one batch, or behind one stall, are late together. The number of late ones then varies more than a binomial
number, by the design effect (Kish, Survey Sampling, 1965, 8.2), and n requests tell as much as n / effect independent
ones (Thompson, Biometrics 43, 1987, uses the effective size in binomial bounds). It is estimated from the
autocovariances of the indicator, with the flat-top window of Politis and White (Econometric Reviews 23, 2004).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perf.stats.percentile import percentile

# A few late requests may all be of one cluster, which says nothing on the clusters. The design effect of this many
# times as many of the slowest is taken if it is larger.
WIDER = 5


def design_effect(values: "Sequence[float] | NDArray[np.float64]", share: float) -> float:
    """The design effect, at least 1, of the `share` of largest values; `values` are (requests,) in order of time.

    Values may be infinite. 1 means that the requests are as good as independent.
    """
    series = np.asarray(values, dtype=np.float64)
    if not len(series):
        return 1.0
    return max(inflation(_above(series, wide)) for wide in (share, max(share, min(WIDER * share, 0.5))))


def inflation(values: NDArray[np.float64]) -> float:
    """The variance of the mean of a series over what it would be if its values were independent, at least 1."""
    count = len(values)
    if count < 8 or (covariance := autocovariances(values))[0] <= 0:
        return 1.0
    width = cut_off(covariance)
    lag = np.arange(1, width + 1)
    estimate = max(1.0, float(1 + 2 * np.sum(flat_top(lag / width) * covariance[1 : width + 1]) / covariance[0]))
    # One standard error is added (Priestley, Spectral Analysis and Time Series, 1981, 6.2.4: variance 8/3 width / n for
    # this window): too low an effect makes verdicts that are wrong, too high a one only makes them later.
    return estimate * (1 + math.sqrt(8 / 3 * width / count)) if estimate > 1 else 1.0


def autocovariances(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The autocovariances of a series at lags 0 to n - 1: (n,)."""
    count = len(values)
    # Padded with as many zeros, so that the ends do not meet; a power of two, since a length with a large prime factor
    # takes 20 times as long.
    padded = 1 << (2 * count - 1).bit_length()
    power = np.abs(np.fft.rfft(values - np.mean(values), padded)) ** 2
    return np.asarray(np.fft.irfft(power)[:count] / count, dtype=np.float64)


def cut_off(covariance: NDArray[np.float64]) -> int:
    """Twice the lag after which the autocovariances are insignificant, at least 1, for a positive first one."""
    count = len(covariance)
    most = longest(count)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    small = np.abs(covariance / covariance[0])[1 : most + run + 1] < 2 * math.sqrt(math.log10(count) / count)
    lags = (lag for lag in range(len(small) - run + 1) if np.all(small[lag : lag + run]))
    return min(2 * max(next(lags, most), 1), most)


def longest(count: int) -> int:
    """The largest lag that is looked at in a series of `count` values."""
    return math.ceil(min(3 * math.sqrt(count), count / 3))


def flat_top(position: NDArray[np.float64]) -> NDArray[np.float64]:
    """The flat-top window: 1 up to one half, then falling to 0 at 1."""
    return np.clip(2 * (1 - position), 0.0, 1.0)


def _above(series: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """1 for each of the `share` largest values, else 0."""
    limit = percentile(series, 100 * (1 - share))
    over = series > limit
    return np.asarray(over if np.any(over) else series >= limit, dtype=np.float64)
