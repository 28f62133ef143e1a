"""What requests that arrive take from the executions under way, where client and server share the model's cores.

An execution of b rows is seen at several levels of the ramp, with many other requests on their way or with few. The
more of them arrive while it runs, the longer it takes: the slope within each size is what one arrival costs, whatever
the curve s(b) is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.measure.ramp import Level
from perf.measure.service_curve import Size, Values, line

# A slope that is not so many of its standard errors above 0 is none.
SURE = 2.0


@dataclass(frozen=True, kw_only=True)
class Burden:
    """`each_us`: microseconds that one arrival makes each execution under way longer while all instances are at work.

    `sizes` are the times of an execution until it has computed (without the sending of its answers), as they would be
    if nothing arrived meanwhile.
    """

    each_us: float
    sizes: tuple[Size, ...]


def burden(levels: Sequence[Level], instances: int, max_batch_size: int) -> Burden:
    """Least squares of time on arrivals within sizes (fixed effects), each execution counting once."""
    seen = [level for level in levels if level.concurrency >= instances]
    cells = np.array([cell for level in seen for cell in _cells(level)])
    rows, count, took = cells[:, 1], cells[:, 2], cells[:, 3]
    arrived = _arrivals(cells, instances, max_batch_size)
    means = {size: _mean(arrived, took, count, rows == size) for size in np.unique(rows)}
    apart = arrived - np.array([means[one][0] for one in rows])
    longer = took - np.array([means[one][1] for one in rows])
    # With fewer in flight not all instances are at work, and less contention would look like less burden.
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
    """Of each size: requests in flight, rows, executions, mean microseconds until computed, requests a second."""
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
    """Requests that arrive during an execution: each of the others comes back once, as far as they were not waiting.

    With further instances no more than come on the mean, and the others come back each time that one has run them.
    """
    clients, rows, count, measured_us, rate = cells.T
    others: Values = np.minimum(clients - rows, largest * instances)
    if instances == 1:
        return others
    # From the line: what made a single execution longer is not to count as arrivals as well.
    curve = line(rows, measured_us, count)
    took: Values = np.array([curve.at(one) for one in rows])
    elsewhere: Values = np.array([curve.at(min(largest, one / (instances - 1))) for one in others])
    again = np.maximum(1.0, took / np.maximum(elsewhere, 1.0))
    found: Values = np.minimum(others * again, rate * took / 1e6)
    return found


def _mean(arrived: Values, took: Values, count: Values, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    weights = count[chosen]
    return float(np.average(arrived[chosen], weights=weights)), float(np.average(took[chosen], weights=weights))
