"""The counted times of batch sizes, their standard errors, and a straight line through them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its `optimize` is loaded at the first rise
from numpy.typing import NDArray

# The spread of single executions is much the same at every size, relative to the mean. A size that ran less often than
# this has its spread mostly from the other sizes, since its own is hardly known.
OWN_SPREAD = 20
# The spread of single executions is at least this share of their mean.
LEAST_SPREAD = 0.01

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The executions of `rows` rows: their number, their mean time in microseconds, and its standard error.

    A standard error as large as the mean says that it is not known.
    """

    rows: int
    executions: int
    mean_us: float
    error_us: float


@dataclass(frozen=True, kw_only=True)
class FittedLine:
    """s(b) = fixed + row x b in microseconds, with standard errors; `r2`: weighted share of variance explained."""

    fixed_us: float
    row_us: float
    fixed_error_us: float
    row_error_us: float
    r2: float

    def at(self, rows: float) -> float:
        """Microseconds of an execution of `rows` rows; never negative."""
        return max(0.0, self.fixed_us + self.row_us * rows)


@dataclass(frozen=True, kw_only=True)
class Rise:
    """Microseconds that never fall with the rows: straight between the rows that were seen, flat beyond them."""

    rows: tuple[float, ...]
    times_us: tuple[float, ...]

    def at(self, rows: float) -> float:
        """Microseconds for `rows` rows; never negative."""
        return max(0.0, float(np.interp(rows, self.rows, self.times_us)))


def rise(rows: Values, times: Values, weights: Values) -> Rise:
    """The nearest times that never fall (isotonic regression) to `times` in microseconds at `rows`, all (n,)."""
    seen, where = np.unique(rows, return_inverse=True)
    total = np.bincount(where, weights)
    means = np.bincount(where, weights * times) / total
    rising = scipy.optimize.isotonic_regression(means, weights=total).x
    return Rise(rows=tuple(seen.tolist()), times_us=tuple(rising.tolist()))


def with_errors(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """The sizes with standard errors in which a rare size has the spread of the others.

    The spread of a few executions is itself hardly known: 18 that happened to be alike would count as exact. So the
    relative variance of one execution is a mean of the size's own and of the median over all sizes, both weighted by
    executions. A median, since one slow second multiplies the variance of the sizes that ran in it.
    """
    own = np.array([_relative_variance(size) for size in sizes])
    counts = np.array([size.executions for size in sizes], dtype=np.float64)
    known = np.isfinite(own)
    pooled = _median(own[known], counts[known]) if np.any(known) else 1.0
    shrunk = np.where(known, (OWN_SPREAD * pooled + counts * np.where(known, own, 0.0)) / (OWN_SPREAD + counts), pooled)
    shares = np.sqrt(np.maximum(shrunk, LEAST_SPREAD**2) / counts)
    return tuple(replace(size, error_us=float(share * size.mean_us)) for size, share in zip(sizes, shares, strict=True))


def fit(sizes: Sequence[Size]) -> FittedLine:
    """The `line` through the mean times of the sizes, weighted by their standard errors (variance over count)."""
    return line(
        np.array([size.rows for size in sizes], dtype=np.float64),
        np.array([size.mean_us for size in sizes]),
        np.array([1 / max(size.error_us, 1e-9) ** 2 for size in with_errors(sizes)]),
    )


def line(rows: Values, times: Values, weights: Values) -> FittedLine:
    """Weighted least squares of `times` in microseconds on `rows`, all (n,).

    The standard errors come from the scatter about the line (chi-square scaled to 1), which includes the steps of the
    curve. With one size the line is flat; with two the errors are unknown, and 0.
    """
    if np.ptp(rows) == 0:
        return FittedLine(
            fixed_us=float(np.average(times, weights=weights)), row_us=0.0, fixed_error_us=0.0, row_error_us=0.0, r2=1.0
        )
    design = np.stack([np.ones_like(rows), rows], axis=1)
    normal = np.linalg.inv(design.T @ (design * weights[:, None]))
    fixed, row = normal @ (design.T @ (weights * times))
    left = weights * (times - fixed - row * rows) ** 2
    total = float(np.sum(weights * (times - np.average(times, weights=weights)) ** 2))
    scale = float(np.sum(left)) / max(1, len(rows) - 2)
    errors = np.sqrt(np.diag(normal) * scale)
    return FittedLine(
        fixed_us=float(fixed),
        row_us=float(row),
        fixed_error_us=float(errors[0]),
        row_error_us=float(errors[1]),
        r2=1.0 - float(np.sum(left)) / total if total else 1.0,
    )


def _median(values: Values, weights: Values) -> float:
    order = np.argsort(values)
    half = np.searchsorted(np.cumsum(weights[order]), float(np.sum(weights)) / 2)
    return float(values[order][half])


def _relative_variance(size: Size) -> float:
    """The variance of one execution over the squared mean; not a number if it is not known."""
    if not 0 < size.error_us < size.mean_us:
        return float("nan")
    return (size.error_us / size.mean_us) ** 2 * size.executions
