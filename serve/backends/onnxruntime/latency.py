"""How long a run takes for its rows and its longest item, learned from the runs themselves.

seconds(rows, length) = a + b rows + c rows length + d rows length^2, with no negative coefficient: a fixed cost per
run, one per item, one per padded element, and attention's. Fitted to the relative error over buckets of similar runs,
so that a thousand runs of one size do not drown out the few of another; then corrected by how the buckets near a size
deviate from the fit, since small runs use a processor less well.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, log2

FEATURES = 4
PROBES = 6
REFIT_EVERY = 32
EARLY = 96
MEMORY = 0.1
OUTLIER = 2.0
FIRST = 3
SWEEPS = 60
TRUSTED = 8


class Latency:
    """The cost of a run in seconds; learns with every run."""

    margin = 0.05

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self._seen = 0
        self._probes = 0
        self.coefficients = [0.0] * FEATURES
        self._deviations: list[tuple[int, int, float, float]] = []
        self._ratios: dict[tuple[int, int], float] = {}
        self._lowest = 1.0

    def prices(self, length: int) -> Callable[[int], float]:
        """Seconds of a run by its rows, each padded to `length` elements."""
        fixed, per_row, per_element, per_square = self.coefficients
        slope = per_row + length * (per_element + length * per_square)
        column, ratios, ratio = step(length + 1), self._ratios, self._ratio

        def price(rows: int) -> float:
            key = (step(rows), column)
            return (fixed + rows * slope) * (ratios[key] if key in ratios else ratio(key))

        return price

    def least(self, sizes: Sequence[tuple[int, int]]) -> float:
        """Two runs without any padding, as fast as runs ever were."""
        fixed, per_row, per_element, per_square = self.coefficients
        items = sum(rows * (per_row + length * (per_element + length * per_square)) for rows, length in sizes)
        return (2 * fixed + items) * self._lowest

    def probing(self) -> bool:
        """Every other one of the first batches is split in two: equal runs would not tell fixed costs from others."""
        self._probes += 1
        return self._probes <= 2 * PROBES and self._probes % 2 == 0

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Learn from one run."""
        key = (step(rows), step(length + 1))
        features = (1.0, float(rows), float(rows) * length, float(rows) * length * length)
        if key in self._buckets:
            self._buckets[key].add(features, seconds)
        else:
            self._buckets[key] = Bucket(features, seconds)
        self._seen += 1
        if self._seen % (4 if self._seen < EARLY else REFIT_EVERY) == 0:
            self._refit()

    def _refit(self) -> None:
        found = {key: bucket for key, bucket in self._buckets.items() if bucket.seconds > 0}
        self.coefficients = fit([(one.features, one.seconds) for one in found.values()])
        self._ratios.clear()
        self._deviations = []
        for (row_step, length_step), bucket in found.items():
            expected = sum(value * factor for value, factor in zip(bucket.features, self.coefficients, strict=True))
            if expected > 0:
                self._deviations.append((row_step, length_step, bucket.seconds / expected, min(bucket.count, TRUSTED)))
        self._lowest = min((deviation for _, _, deviation, _ in self._deviations), default=1.0)

    def _ratio(self, key: tuple[int, int]) -> float:
        """How runs of this size deviate from the fitted curve: what similar runs did, the nearest counting most."""
        weights, total = 1e-9, 1e-9
        for row_step, length_step, deviation, count in self._deviations:
            distance = (row_step - key[0]) ** 2 + (length_step - key[1]) ** 2
            weight = count * exp(-distance)
            weights += weight
            total += weight * deviation
        return self._ratios.setdefault(key, total / weights)


@lru_cache(maxsize=4096)
def step(number: int) -> int:
    """Half octaves: 1, 1.4, 2, 2.8, 4 .. are one step apart."""
    return round(2 * log2(number))


class Bucket:
    """A fading mean of similar runs."""

    def __init__(self, features: tuple[float, ...], seconds: float) -> None:
        self.features, self.seconds, self.count = features, seconds, 1

    def add(self, features: tuple[float, ...], seconds: float) -> None:
        """Take in one more; a run that was much slower than the others was disturbed, or the first of its size."""
        self.count += 1
        if self.count <= FIRST:
            self.seconds = seconds = min(self.seconds, seconds)
        weight = max(MEMORY, 1 / self.count)
        seconds = min(seconds, OUTLIER * self.seconds)
        self.features = tuple(old + weight * (new - old) for old, new in zip(self.features, features, strict=True))
        self.seconds += weight * (seconds - self.seconds)


def fit(points: list[tuple[tuple[float, ...], float]]) -> list[float]:
    """Non-negative least squares of the relative error, by coordinate descent on the normal equations.

    Franc, Hlavac, Navara: Sequential coordinate-wise algorithm for the non-negative least squares problem (2005).
    """
    span = range(FEATURES)
    scaled = [[value / seconds for value in features] for features, seconds in points]
    sizes = [max((row[i] for row in scaled), default=0.0) or 1.0 for i in span]
    gram = [[sum(row[i] * row[j] for row in scaled) / sizes[i] / sizes[j] for j in span] for i in span]
    gradient = [-sum(row[i] for row in scaled) / sizes[i] for i in span]
    found = [0.0] * FEATURES
    for _ in range(SWEEPS):
        for i in span:
            if gram[i][i] > 0:
                step = max(-found[i], -gradient[i] / gram[i][i])
                found[i] += step
                for j in span:
                    gradient[j] += step * gram[i][j]
    return [value / size for value, size in zip(found, sizes, strict=True)]
