"""Learns the time of a run from its rows, its elements and its longest item.

seconds(rows, elements, length) = a + b rows + c elements + d rows length + e rows length^2, with no negative
coefficient: the cost per run, per item, per element, per padded element, and of attention. The fit minimises the
relative error over buckets of runs with similar rows, length and share of padding, so that a thousand runs of one size
do not outweigh a few of another.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import log2

FEATURES = 5
PROBES = 6
REFIT_EVERY = (4, 128)
REFIT_SHARE = 0.1
NEW_WEIGHT = 0.1
SLOWER = 0.3
OUTLIER = 2.0
FIRST = 3
SWEEPS = 60


class Latency:
    """The seconds of a run; learns from every run."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int, int], Bucket] = {}
        self._seen = 0
        self._next_fit = 0
        self._probes = 0
        self.coefficients = [0.0] * FEATURES

    def prices(self, length: int) -> Callable[[int, int], float]:
        """The seconds of a run by its rows and its own elements, with rows padded to `length` elements."""
        fixed, per_row, per_element, per_padded, per_square = self.coefficients
        slope = per_row + length * (per_padded + length * per_square)
        return lambda rows, elements: fixed + rows * slope + elements * per_element

    def least(self, sizes: Sequence[tuple[int, int]]) -> float:
        """A lower bound, fast to compute, of the seconds of requests (rows, length) in two or more runs."""
        fixed, per_row, per_element, per_padded, per_square = self.coefficients
        per_length = per_element + per_padded
        return 2 * fixed + sum(rows * (per_row + length * (per_length + length * per_square)) for rows, length in sizes)

    def probing(self) -> bool:
        """True for every second one of the first batches: runs of other sizes show the fixed cost."""
        self._probes += 1
        return self._probes <= 2 * PROBES and self._probes % 2 == 0

    def observe(self, rows: int, elements: int, length: int, seconds: float) -> None:
        """Learn from one run."""
        key = (step(rows), step(length + 1), 4 * elements // (rows * length or 1))
        features = (1.0, float(rows), float(elements), float(rows) * length, float(rows) * length * length)
        if key in self._buckets:
            self._buckets[key].add(features, seconds)
        else:
            self._buckets[key] = Bucket(features, seconds)
        self._seen += 1
        if self._seen >= self._next_fit:
            # A fit takes 0.6 ms, so it becomes rarer with the number of runs.
            least, most = REFIT_EVERY
            self._next_fit = self._seen + round(min(max(least, REFIT_SHARE * self._seen), most))
            points = [(bucket.features, bucket.seconds) for bucket in self._buckets.values() if bucket.seconds > 0]
            self.coefficients = fit(points, self.coefficients)


@lru_cache(maxsize=4096)
def step(number: int) -> int:
    """The number on a scale of half octaves: 1, 1.4, 2, 2.8, 4 ... are one step apart."""
    return round(2 * log2(number))


class Bucket:
    """A fading mean of similar runs that prefers fast ones, because other processes only make a run slower."""

    def __init__(self, features: tuple[float, ...], seconds: float) -> None:
        self.features, self.seconds, self.count = features, seconds, 1

    def add(self, features: tuple[float, ...], seconds: float) -> None:
        """Add a run; a much slower one counts less, because it was disturbed or the first of its size."""
        self.count += 1
        if self.count <= FIRST:
            self.seconds = seconds = min(self.seconds, seconds)
        weight = max(NEW_WEIGHT, 1 / self.count)
        seconds = min(seconds, OUTLIER * self.seconds)
        self.features = tuple(old + weight * (new - old) for old, new in zip(self.features, features, strict=True))
        self.seconds += weight * (SLOWER if seconds > self.seconds else 1.0) * (seconds - self.seconds)


def fit(points: Sequence[tuple[tuple[float, ...], float]], start: Sequence[float]) -> list[float]:
    """Non-negative least squares of the relative error, by coordinate descent on the normal equations from `start`.

    Franc, Hlavac, Navara: Sequential coordinate-wise algorithm for the non-negative least squares problem (2005).
    """
    span = range(FEATURES)
    scaled = [[value / seconds for value in features] for features, seconds in points]
    sizes = [max((row[i] for row in scaled), default=0.0) or 1.0 for i in span]
    gram = [[sum(row[i] * row[j] for row in scaled) / sizes[i] / sizes[j] for j in span] for i in span]
    weights = [value * size for value, size in zip(start, sizes, strict=True)]
    gradient = [sum(gram[i][j] * weights[j] for j in span) - sum(row[i] for row in scaled) / sizes[i] for i in span]
    for _ in range(SWEEPS):
        for i in span:
            if gram[i][i] > 0:
                move = max(-weights[i], -gradient[i] / gram[i][i])
                weights[i] += move
                for j in span:
                    gradient[j] += move * gram[i][j]
    return [value / size for value, size in zip(weights, sizes, strict=True)]
