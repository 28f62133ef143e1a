"""The service time s(b): what one execution of b rows takes, as counted size by size, and the line through it.

Real curves are stepped (a kernel, a cache, a tile), so the table is kept and the line only steadies it where few
executions were counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A size counted less often than this leans on its neighbours, the more the rarer it is.
FEW = 20


Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Executions of `rows` rows: how many, their mean time in microseconds, and its standard error."""

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
        """Microseconds of an execution of so many rows; never negative."""
        return max(0.0, self.fixed_us + self.row_us * rows)


def fit(sizes: Sequence[Size]) -> FittedLine:
    """`line` through the means of the sizes, each with the number of its executions."""
    return line(
        np.array([one.rows for one in sizes], dtype=np.float64),
        np.array([one.mean_us for one in sizes]),
        np.array([one.executions for one in sizes], dtype=np.float64),
    )


def line(rows: Values, times: Values, weights: Values) -> FittedLine:
    """Weighted least squares of microseconds on rows.

    The standard errors are those of the estimate from the scatter about the line (chi-square scaled to 1), which
    includes steps of the curve; with one size the line is flat, and with two the errors are unknown, written as 0.
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


def smoothed(sizes: Sequence[Size], most: int) -> Mapping[int, float]:
    """Microseconds for every size 1 to `most`.

    Each size is a weighted mean of what was counted at it and of a local line through its neighbours (weights: the
    executions, falling linearly to 0 over a quarter of the size); a size that was counted `FEW` times or more is hardly
    moved. Where nothing was counted nearby, the line through all sizes stands in.
    """
    whole = fit(sizes)
    counted = {one.rows: one for one in sizes}
    found = {}
    for rows in range(1, most + 1):
        guess = _local(sizes, rows, whole)
        one = counted.get(rows)
        trust = 0.0 if one is None else one.executions / (one.executions + FEW / 4)
        found[rows] = trust * one.mean_us + (1 - trust) * guess if one is not None else guess
    return found


def _local(sizes: Sequence[Size], rows: int, whole: FittedLine) -> float:
    reach = max(2.0, rows / 4)
    near = [one for one in sizes if abs(one.rows - rows) < reach]
    weights = {one.rows: one.executions * (1 - abs(one.rows - rows) / reach) for one in near}
    total = sum(weights.values())
    if not total:
        return _between(sizes, rows, whole)
    # The neighbours' level, with the slope of the line through all of them.
    return sum(weights[one.rows] * (one.mean_us + whole.row_us * (rows - one.rows)) for one in near) / total


def _between(sizes: Sequence[Size], rows: int, whole: FittedLine) -> float:
    """On the straight line between the two nearest counted sizes; beyond them, as the line through all goes on."""
    below = max((one for one in sizes if one.rows < rows), key=lambda one: one.rows, default=None)
    above = min((one for one in sizes if one.rows > rows), key=lambda one: one.rows, default=None)
    if below and above:
        share = (rows - below.rows) / (above.rows - below.rows)
        return below.mean_us + share * (above.mean_us - below.mean_us)
    nearest = below or above
    assert nearest is not None
    return max(nearest.mean_us + whole.row_us * (rows - nearest.rows), nearest.mean_us / 2)
