"""Percentiles of latencies as order statistics: a value that was measured, infinite where that was not answered."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def percentile(values: "Sequence[float] | NDArray[np.float64]", percent: float) -> NDArray[np.float64]:
    """The smallest of the n values that `percent` of them do not exceed, of rank ceil(n p): (..., n) -> (...).

    Infinite for n = 0.
    """
    found = np.asarray(values, dtype=np.float64)
    count = found.shape[-1]
    if not count:
        return np.full(found.shape[:-1], np.inf)
    # Less than a request's worth, since 99.9 % of 1000 can come out as 999.0000000000001.
    place = max(0, math.ceil(count * percent / 100 - 1e-9) - 1)
    return np.asarray(np.partition(found, place, axis=-1)[..., place])
