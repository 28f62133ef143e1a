"""Intervals on the ratio of two measurements by resampling what was measured (the bootstrap), seeded.

Rounds are resampled where there are rounds, since what changes from one to the next (other work on the machine, a
server's start) is the most of the noise; blocks of requests where there is one run of each, since latencies that
follow each other are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
# Of one sample (..., n) -> (...).
Statistic = Callable[[Values], Values]
LEVEL = 0.95
RESAMPLES = 4000
# Fewer have at most 35 different resamples: their extremes, which a 95 % interval needs, are the data's own.
LEAST = 5
# Elements of one matrix of resamples.
CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio and the interval that holds the true one with probability `level`, from `count` measurements a side.

    `method` names how it was found.
    """

    value: float
    low: float
    high: float
    level: float
    count: int
    method: str

    @property
    def tells(self) -> bool:
        """Whether it is sure on which side of 1 the ratio is."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def paired(new: Sequence[float], old: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> Interval:
    """Geometric mean of `new` / `old`, round by round; both (rounds,), all above 0.

    From five rounds on the expanded percentile interval: percentiles of the resampled means, so far out that they
    make up for the n in place of n - 1 and the normal in place of Student's t of the plain ones (Hesterberg, What
    Teachers Should Know About the Bootstrap, The American Statistician 69, 2015, 5.3). Of fewer, which cannot be
    resampled, Student's t on the logarithms; of one there is no interval.
    """
    logs = np.log(np.asarray(new, dtype=np.float64)) - np.log(np.asarray(old, dtype=np.float64))
    count = len(logs)
    if count < LEAST:
        spread = float(np.std(logs, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
        return _student(float(np.mean(logs)), spread, count - 1, count, level)
    means = _resampled(logs, np.random.default_rng(seed))
    outer = _expanded(level, count - 1, math.sqrt(count / (count - 1)))
    return _interval(float(np.mean(logs)), means, outer, level, count, "expanded percentile, rounds in pairs")


def unpaired(new: Sequence[float], old: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> Interval:
    """Geometric mean of `new` over that of `old`, of runs that have nothing to do with each other.

    As `paired`, with Welch's degrees of freedom.
    """
    sides = [np.log(np.asarray(side, dtype=np.float64)) for side in (new, old)]
    count, value = min(map(len, sides)), float(np.mean(sides[0]) - np.mean(sides[1]))
    if count < 2:
        return _student(value, math.inf, 1, count, level)
    squares = [float(np.var(side, ddof=1)) / len(side) for side in sides]
    freedom = sum(squares) ** 2 / max(
        sum(square**2 / (len(side) - 1) for square, side in zip(squares, sides, strict=True)), 1e-300
    )
    if count < LEAST:
        return _student(value, math.sqrt(sum(squares)), max(freedom, count - 1.0), count, level)
    rng = np.random.default_rng(seed)
    # Deviations are widened before they are taken from each other, as each side has its own n.
    wide = [
        np.mean(side) + (_resampled(side, rng) - np.mean(side)) * math.sqrt(len(side) / (len(side) - 1))
        for side in sides
    ]
    outer = _expanded(level, max(freedom, count - 1.0), 1.0)
    return _interval(value, wide[0] - wide[1], outer, level, count, "expanded percentile, runs")


def series(
    new: Sequence[float], old: Sequence[float], statistic: Statistic, *, level: float = LEVEL, seed: int = 0
) -> Interval:
    """`statistic` of `new` over that of `old`, each the values of one run in their order.

    Percentile interval of the circular block bootstrap (Politis and Romano, 1992): blocks of values that followed
    each other keep what they have in common. What changes from run to run is not in it.
    """
    rng = np.random.default_rng(seed)
    sides = [np.asarray(side, dtype=np.float64) for side in (new, old)]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [np.log(statistic(side)) for side in sides]
        found = [np.log(_blocks(side, statistic, rng)) for side in sides]
        # Infinite over infinite is no number, and no interval has an end then.
        value, ratios = float(values[0] - values[1]), found[0] - found[1]
    count = min(map(len, sides))
    return _interval(value, ratios, (1 - level) / 2, level, count, "percentile, blocks")


def mean(values: Values) -> Values:
    """The statistic that `series` takes for a rate: the mean of counts."""
    return np.asarray(np.mean(values, axis=-1), dtype=np.float64)


def block_length(values: Values) -> int:
    """How many values that follow each other hang together, for the circular block bootstrap.

    Politis and White, Automatic Block-Length Selection, Econometric Reviews 23, 2004 (corrected by Patton, Politis and
    White, 2009): from the autocovariances up to twice the lag after which they are no longer seen.
    """
    count = len(values)
    centred = values - np.mean(values)
    power = np.abs(np.fft.rfft(centred, 2 * count)) ** 2
    covariance = np.fft.irfft(power)[:count] / count
    if count < 8 or covariance[0] <= 1e-12 * max(1.0, float(np.mean(values)) ** 2):
        return 1
    most = math.ceil(min(3 * math.sqrt(count), count / 3))
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    small = np.abs(covariance / covariance[0])[1 : most + run + 1] < 2 * math.sqrt(math.log10(count) / count)
    lags = (lag for lag in range(len(small) - run + 1) if np.all(small[lag : lag + run]))
    width = min(2 * max(next(lags, most), 1), most)
    lag = np.arange(1, width + 1)
    window = np.clip(2 * (1 - lag / width), 0.0, 1.0)  # the flat top
    slope = 2 * float(np.sum(window * lag * covariance[1 : width + 1]))
    at_zero = float(covariance[0] + 2 * np.sum(window * covariance[1 : width + 1]))
    length = (2 * slope**2 / (4 / 3 * at_zero**2)) ** (1 / 3) * count ** (1 / 3) if at_zero else most
    return int(min(max(1, math.ceil(length)), most))


def _blocks(values: Values, statistic: Statistic, rng: np.random.Generator) -> Values:
    """The statistic of resamples that are made of blocks."""
    count = len(values)
    # What moves a percentile is whether values are over it, so those that follow each other are counted by that too.
    over = (values > statistic(values)).astype(np.float64)
    finite = np.where(np.isfinite(values), values, np.max(values[np.isfinite(values)], initial=0.0))
    length = max(block_length(finite), block_length(over))
    offsets, needed = np.arange(length), -(-count // length)
    each = max(1, CHUNK // (needed * length))
    parts = []
    for start in range(0, RESAMPLES, each):
        begins = rng.integers(0, count, (min(each, RESAMPLES - start), needed, 1))
        picked = ((begins + offsets) % count).reshape(len(begins), -1)[:, :count]
        parts.append(statistic(values[picked]))
    return np.concatenate(parts)


def _resampled(logs: Values, rng: np.random.Generator) -> Values:
    return np.asarray(np.mean(logs[rng.integers(0, len(logs), (RESAMPLES, len(logs)))], axis=1), dtype=np.float64)


def _expanded(level: float, freedom: float, factor: float) -> float:
    """The share to leave out on each side."""
    return NormalDist().cdf(-factor * student((1 + level) / 2, freedom))


def student(probability: float, freedom: float) -> float:
    """Quantile of Student's t: with t = sqrt(freedom) tan(angle), the density is that of cos^(freedom - 1) angles."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(probability, area / area[-1], angles)))


def _student(value: float, spread: float, freedom: float, count: int, level: float) -> Interval:
    if not math.isfinite(spread):
        return Interval(value=math.exp(value), low=0.0, high=math.inf, level=level, count=count, method="no interval")
    half = student((1 + level) / 2, freedom) * spread
    return Interval(
        value=math.exp(value),
        low=math.exp(value - half),
        high=math.exp(value + half),
        level=level,
        count=count,
        method="Student's t",
    )


def _interval(value: float, found: Values, outer: float, level: float, count: int, method: str) -> Interval:
    usable = found[np.isfinite(found)]
    low, high = np.quantile(usable, [outer, 1 - outer]) if len(usable) == len(found) else (-math.inf, math.inf)
    return Interval(
        value=math.exp(value) if math.isfinite(value) else math.nan,
        low=math.exp(low),
        high=math.exp(high),
        level=level,
        count=count,
        method=method,
    )
