"""The service time s(b) of an execution of b rows: a rising curve, its interval at each size, and random draws of it.

Real curves have steps: a kernel computes tiles of 8 rows, so 9 rows take as long as 16. Two shapes are compared by
cross-validation: a straight line, and a line with steps every w rows. Sizes that were counted exactly keep their own
time; those with a large error are drawn to the shape; and a larger batch never takes less time (isotonic regression).

Between two counted sizes nothing was seen. A rising curve is between their times there, and that is its interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `optimize` is loaded at the first curve

from perf.measure.service_line import Size, Values, with_errors

# Widths of tiles that are tried: kernels have small ones, or multiples of 16.
WIDTHS = (*range(2, 33), *range(48, 257, 16))
# Differences below this share are the machine's drift during a ramp; they are not taken for a shape.
DRIFT = 0.02
# Parts of the cross-validation.
FOLDS = 10
# Half the width of an interval in standard deviations: 95 % of a normal distribution, so that 90 % remain if the
# deviation itself is uncertain.
WIDE = 1.96
# Beyond the largest counted size the growth is between nothing and this many times the expected one.
BEYOND = 2.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """s(b) = fixed + row x b + tile x ceil(b / width), all coefficients at least 0; no steps if `width` is 0."""

    width: int
    fixed_us: float
    row_us: float
    tile_us: float

    def at(self, rows: Values) -> Values:
        """Microseconds of executions of `rows` rows (n,)."""
        steps = self.tile_us * np.ceil(rows / self.width) if self.width else 0.0
        return np.asarray(self.fixed_us + self.row_us * rows + steps)

    def __str__(self) -> str:
        return f"steps of {self.width} rows" if self.width else "a straight line"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Microseconds of every size from 1 on, with bounds that hold each of them with a probability of 90 % or more.

    `counted` are the sizes that were counted, and `deviation_us` the standard deviations of their times.
    """

    shape: Shape
    times_us: Mapping[int, float]
    low_us: Mapping[int, float]
    high_us: Mapping[int, float]
    counted: tuple[int, ...]
    deviation_us: tuple[float, ...]

    def drawn(self, rng: np.random.Generator) -> dict[int, float]:
        """A random curve that the counted executions allow: their errors, and edges of steps that were not seen.

        In each gap between two counted sizes the curve rises evenly, or at one random size.
        """
        rows, all_rows = np.array(self.counted), np.array(list(self.times_us))
        means = np.array([self.times_us[size] for size in self.counted])
        values = rising(np.maximum(rng.normal(means, self.deviation_us), 0.1 * means), 1 / np.square(self.deviation_us))
        known = dict(zip(self.counted, values.tolist(), strict=True))
        ratios = values / means
        smooth = np.array(list(self.times_us.values())) * np.interp(all_rows, rows, ratios)
        drawn = {int(size): float(us) for size, us in zip(all_rows, smooth, strict=True)} | known
        for below, above in zip(self.counted, self.counted[1:], strict=False):
            if above - below > 1 and rng.random() < 0.5:
                edge = int(rng.integers(below, above))  # the last size before the step
                for size in range(below + 1, above):
                    drawn[size] = known[below] if size <= edge else known[above]
        return dict(zip(drawn, np.maximum.accumulate(list(drawn.values())).tolist(), strict=True))


def curve(sizes: Sequence[Size], most: int) -> Curve:
    """The curve through counted sizes, from 1 to `most` rows."""
    sizes = sorted(with_errors(sizes), key=lambda size: size.rows)
    rows = np.array([size.rows for size in sizes], dtype=np.float64)
    times, errors = np.array([size.mean_us for size in sizes]), np.array([size.error_us for size in sizes])
    shape = chosen(rows, times, errors)
    expected = np.maximum(shape.at(rows), 1e-3)
    # The shape is off by about this share of the time at sizes that were counted exactly.
    parameters = 3 if shape.width else 2
    spread = _spread(times / expected, errors / expected, parameters) * expected
    trust = np.where(errors > 0, spread**2 / (spread**2 + errors**2 + 1e-12), 1.0)
    drawn_to = expected + trust * (times - expected)
    # The shape itself is known as well as all sizes together tell its coefficients.
    fit_error = math.sqrt(parameters / float(np.sum(1 / (spread**2 + errors**2 + 1e-12))))
    deviation = np.sqrt(trust * errors**2 + (1 - trust) * fit_error**2) + 1e-6 * expected
    values = rising(drawn_to, 1 / deviation**2)
    return _filled(shape, rows, values, deviation, most)


def rising(values: Values, weights: Values) -> Values:
    """The nearest values that never fall (isotonic regression), both (n,)."""
    return np.asarray(scipy.optimize.isotonic_regression(values, weights=weights).x)


def chosen(rows: Values, times: Values, errors: Values) -> Shape:
    """The straight line, or the steps if they predict sizes that were left out better, by more than one standard error.

    The rule of one standard error is that of Breiman et al., Classification and Regression Trees, 1984, 3.4.3.
    """
    weights = 1 / (errors**2 + (DRIFT * times) ** 2)
    straight = _fitted(rows, times, weights, 0)
    if len(rows) < 5:
        return straight
    losses = {kind: _losses(rows, times, weights, stepped=kind) for kind in (False, True)}
    better = losses[False] - losses[True]
    error = float(np.std(better, ddof=1)) * math.sqrt(len(better))
    return _stepped(rows, times, weights) if float(np.sum(better)) > error else straight


def _losses(rows: Values, times: Values, weights: Values, *, stepped: bool) -> Values:
    """Weighted squared errors at sizes that were left out in turn; the outer two always stay, (n - 2,)."""
    inner = np.arange(1, len(rows) - 1)
    losses = np.zeros(len(inner))
    for fold in range(min(FOLDS, len(inner))):
        out = inner[fold :: min(FOLDS, len(inner))]
        kept = np.setdiff1d(np.arange(len(rows)), out)
        shape = (
            _stepped(rows[kept], times[kept], weights[kept])
            if stepped
            else _fitted(rows[kept], times[kept], weights[kept], 0)
        )
        losses[out - 1] = weights[out] * (times[out] - shape.at(rows[out])) ** 2
    return losses


def _stepped(rows: Values, times: Values, weights: Values) -> Shape:
    """The best of the shapes with steps; of equal ones that with the largest power of two in its width."""
    widths = [width for width in WIDTHS if width < rows[-1]]
    shapes = [_fitted(rows, times, weights, width) for width in widths or [0]]
    costs = [float(np.sum(weights * (times - shape.at(rows)) ** 2)) for shape in shapes]
    least = min(costs)
    equal = [shape for shape, cost in zip(shapes, costs, strict=True) if cost <= least * 1.05 + 1e-3]
    return max(equal, key=lambda shape: (shape.width & -shape.width, -shape.width))


def _fitted(rows: Values, times: Values, weights: Values, width: int) -> Shape:
    root = np.sqrt(weights)
    coefficients, _ = scipy.optimize.nnls(_design(rows, width) * root[:, None], times * root)
    fixed, row, *tile = (float(value) for value in coefficients)
    return Shape(width=width, fixed_us=fixed, row_us=row, tile_us=tile[0] if tile else 0.0)


def _design(rows: Values, width: int) -> Values:
    columns = [np.ones_like(rows), rows] + ([np.ceil(rows / width)] if width else [])
    return np.stack(columns, axis=1)


def _spread(ratios: Values, errors: Values, parameters: int) -> float:
    """The standard deviation of ratios about 1 beyond their errors (DerSimonian and Laird, 1986).

    One standard error of the sum of squares is added: a deviation of 0 that is not sure makes all errors too small.
    """
    weights = 1 / np.maximum(errors, 1e-9) ** 2
    total, left = float(np.sum(weights)), len(ratios) - parameters
    free = float(total - np.sum(weights**2) / total)
    if left <= 0 or free <= 0:
        return 1.0
    beyond = float(np.sum(weights * (ratios - 1) ** 2)) - left + math.sqrt(2 * left)
    return math.sqrt(max(0.0, beyond / free))


def _filled(shape: Shape, rows: Values, values: Values, deviation: Values, most: int) -> Curve:
    """Every size from 1 to `most`: the shape, moved to go through the values of the counted sizes."""
    every = np.arange(1, max(most, int(rows[-1])) + 1, dtype=np.float64)
    moved = shape.at(every) * np.interp(every, rows, values / np.maximum(shape.at(rows), 1e-3))
    lows, highs = np.maximum(values - WIDE * deviation, 0.0), values + WIDE * deviation
    below, above = np.searchsorted(rows, every, side="right") - 1, np.searchsorted(rows, every, side="left")
    times, low, high = moved.copy(), moved.copy(), moved.copy()
    for index, (left, right) in enumerate(zip(below, above, strict=True)):
        if left < 0:
            # Smaller than all counted ones.
            times[index] = min(moved[index], values[0])
            low[index], high[index] = max(0.0, values[0] - BEYOND * (values[0] - times[index])), highs[0]
        elif right == len(rows):
            times[index] = max(moved[index], values[-1])
            low[index], high[index] = lows[-1], highs[-1] + BEYOND * (times[index] - values[-1])
        else:
            times[index] = np.clip(moved[index], values[left], values[right])
            low[index], high[index] = lows[left], highs[right]
    names = every.astype(int).tolist()
    return Curve(
        shape=shape,
        times_us=dict(zip(names, np.maximum.accumulate(times).tolist(), strict=True)),
        low_us=dict(zip(names, low.tolist(), strict=True)),
        high_us=dict(zip(names, high.tolist(), strict=True)),
        counted=tuple(int(size) for size in rows),
        deviation_us=tuple(deviation.tolist()),
    )
