"""What arriving requests add to the executions in progress, from a ramp of concurrency.

Where client and server share the model's cores, requests that arrive slow down the executions in progress. Each batch
size is seen at several levels of the ramp, with many other requests in flight or with few. The slope of time over
arrivals within each size is what one arrival costs, whatever the curve is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.measure.ramp import Level
from perf.measure.service_line import Size, Values, line, with_errors

# A slope counts if it is this many standard errors above 0.
SURE = 2.0


@dataclass(frozen=True, kw_only=True)
class Burden:
    """What arriving requests add to the executions in progress.

    `each_us`: microseconds that one arrival adds to each execution while all instances are busy. `sizes`: the times of
    the executions until they have computed (without the sending of answers), if no request arrived meanwhile.
    `drift`: the standard deviation, as a share, of the times of one size from level to level, beyond their errors.
    """

    each_us: float
    sizes: tuple[Size, ...]
    drift: float = 0.0


def burden(
    levels: Sequence[Level], instances: int, max_batch_size: int, errors_us: Mapping[int, float] | None = None
) -> Burden:
    """Least squares of time on arrivals within each size (fixed effects), weighted by executions.

    `errors_us` are the standard errors of the mean times by rows, for the sizes of the result.
    """
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
    known = errors_us or {}
    sizes = tuple(
        Size(
            rows=int(size),
            executions=int(np.sum(count[rows == size])),
            mean_us=t - each * a,
            error_us=known.get(int(size), 0.0),
        )
        for size, (a, t) in means.items()
    )
    return Burden(each_us=each, sizes=sizes, drift=_drift((longer - each * apart), rows, count, sizes))


def _drift(left: Values, rows: Values, count: Values, sizes: Sequence[Size]) -> float:
    """The scatter of the levels of each size that is larger than the spread of single executions explains."""
    squares = free = 0.0
    for size in with_errors(sizes):
        chosen = rows == size.rows
        shares, counts = left[chosen] / size.mean_us, count[chosen]
        # A weighted sum of squares about the mean: what single executions and a drift of 1 add to it on average.
        single = (size.error_us / size.mean_us) ** 2 * size.executions
        squares += float(np.sum(counts * shares**2)) - single * (len(counts) - 1)
        free += float(np.sum(counts) - np.sum(counts**2) / np.sum(counts))
    return math.sqrt(max(0.0, squares / free)) if free > 0 else 0.0


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
