"""The service time s(b) of an execution of b rows: its curve, and what arriving requests add to it.

Real curves have steps (a kernel, a cache, a tile), so the table of sizes is kept, and the fitted line only smooths
sizes that were rarely counted.

Where client and server share the model's cores, requests that arrive slow down the executions in progress. Each batch
size is seen at several levels of the ramp, with many other requests in flight or with few. The slope of time over
arrivals within each size is what one arrival costs, whatever the curve is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.measure.ramp import Level

# A size counted less often than this is smoothed with its neighbours, the more the rarer it is.
FEW = 20
# A slope counts if it is this many standard errors above 0.
SURE = 2.0


Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The executions of `rows` rows: their number, their mean time in microseconds, and its standard error."""

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


def fit(sizes: Sequence[Size]) -> FittedLine:
    """The `line` through the mean times of the sizes, weighted by their executions."""
    return line(
        np.array([size.rows for size in sizes], dtype=np.float64),
        np.array([size.mean_us for size in sizes]),
        np.array([size.executions for size in sizes], dtype=np.float64),
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


def smoothed(sizes: Sequence[Size], most: int) -> Mapping[int, float]:
    """Microseconds of every size from 1 to `most`.

    Each is a weighted mean of the counted mean and of a local line through the neighbours, which weigh by their
    executions, falling linearly to 0 over a quarter of the size. A size that was counted `FEW` times or more hardly
    changes. If nothing was counted nearby, the line through all sizes is used.
    """
    whole = fit(sizes)
    counted = {size.rows: size for size in sizes}
    times = {}
    for rows in range(1, most + 1):
        times[rows] = _local(sizes, rows, whole)
        if (size := counted.get(rows)) is not None:
            trust = size.executions / (size.executions + FEW / 4)
            times[rows] = trust * size.mean_us + (1 - trust) * times[rows]
    return times


def _local(sizes: Sequence[Size], rows: int, whole: FittedLine) -> float:
    reach = max(2.0, rows / 4)
    near = [size for size in sizes if abs(size.rows - rows) < reach]
    weights = {size.rows: size.executions * (1 - abs(size.rows - rows) / reach) for size in near}
    total = sum(weights.values())
    if not total:
        return _between(sizes, rows, whole)
    # The level of the neighbours, with the slope of the line through all sizes.
    return sum(weights[size.rows] * (size.mean_us + whole.row_us * (rows - size.rows)) for size in near) / total


def _between(sizes: Sequence[Size], rows: int, whole: FittedLine) -> float:
    """Interpolated between the two nearest counted sizes; beyond them, with the slope of the line through all."""
    below = max((size for size in sizes if size.rows < rows), key=lambda size: size.rows, default=None)
    above = min((size for size in sizes if size.rows > rows), key=lambda size: size.rows, default=None)
    if below and above:
        share = (rows - below.rows) / (above.rows - below.rows)
        return below.mean_us + share * (above.mean_us - below.mean_us)
    nearest = below or above
    assert nearest is not None
    return max(nearest.mean_us + whole.row_us * (rows - nearest.rows), nearest.mean_us / 2)


@dataclass(frozen=True, kw_only=True)
class Burden:
    """What arriving requests add to the executions in progress.

    `each_us`: microseconds that one arrival adds to each execution while all instances are busy. `sizes`: the times of
    the executions until they have computed (without the sending of answers), if no request arrived meanwhile.
    """

    each_us: float
    sizes: tuple[Size, ...]


def burden(levels: Sequence[Level], instances: int, max_batch_size: int) -> Burden:
    """Least squares of time on arrivals within each size (fixed effects), weighted by executions."""
    busy_levels = [level for level in levels if level.concurrency >= instances]
    cells = np.array([cell for level in busy_levels for cell in _cells(level)])
    rows, count, took = cells[:, 1], cells[:, 2], cells[:, 3]
    arrived = _arrivals(cells, instances, max_batch_size)
    means = {size: _mean(arrived, took, count, rows == size) for size in np.unique(rows)}
    apart = arrived - np.array([means[size][0] for size in rows])
    longer = took - np.array([means[size][1] for size in rows])
    # With fewer requests in flight not all instances are busy, and less contention would look like less burden.
    busy = np.where(cells[:, 0] >= 2 * instances, count, 0.0)
    squares = float(np.sum(busy * apart**2))
    each = float(np.sum(busy * apart * longer)) / squares if squares else 0.0
    free = len(rows) - len(means) - 1
    error = float(np.sqrt(np.sum(busy * (longer - each * apart) ** 2) / max(1, free) / squares)) if squares else 0.0
    each = each if free > 0 and each > SURE * error else 0.0
    sizes = tuple(
        Size(rows=int(size), executions=int(np.sum(count[rows == size])), mean_us=t - each * a, error_us=0.0)
        for size, (a, t) in means.items()
    )
    return Burden(each_us=each, sizes=sizes)


def _cells(level: Level) -> list[tuple[float, ...]]:
    """For each size: requests in flight, rows, executions, mean microseconds until computed, requests per second."""
    counted = level.counted
    return [
        (
            level.concurrency,
            rows,
            count,
            counted.computing_ns(rows) / count / 1e3,
            counted.rows / level.seconds if level.seconds else 0.0,
        )
        for rows, count in counted.batches.items()
    ]


def _arrivals(cells: Values, instances: int, largest: int) -> Values:
    """The number of requests that arrive during an execution, for each cell.

    With one instance each of the other clients sends once, except those that wait in the queue. With several, the other
    clients send each time an instance has run their request, but on average no more than the rate allows.
    """
    clients, rows, count, measured_us, rate = cells.T
    others: Values = np.minimum(clients - rows, largest * instances)
    if instances == 1:
        return others
    # Times of the line, so that the slowdown of single executions does not count as arrivals.
    curve = line(rows, measured_us, count)
    took: Values = np.array([curve.at(size) for size in rows])
    elsewhere: Values = np.array([curve.at(min(largest, other / (instances - 1))) for other in others])
    again = np.maximum(1.0, took / np.maximum(elsewhere, 1.0))
    arrived: Values = np.minimum(others * again, rate * took / 1e6)
    return arrived


def _mean(arrived: Values, took: Values, count: Values, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    weights = count[chosen]
    return float(np.average(arrived[chosen], weights=weights)), float(np.average(took[chosen], weights=weights))
