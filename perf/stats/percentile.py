"""Percentiles of latencies as order statistics.

A percentile is a latency that was measured. It is infinite if that request got no answer.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def percentile(values: "Sequence[float] | NDArray[np.float64]", percent: float) -> NDArray[np.float64]:
    """The value of rank ceil(n p), the smallest that `percent` of the n values do not exceed: (..., n) -> (...).

    Infinite for n = 0. `numpy.percentile(method="inverted_cdf")` is the same but for its rank, which is one too high
    where n p is a whole number that floating point makes larger: 99.9 % of 1000 comes out as 999.0000000000001.
    """
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[-1]
    if not count:
        return np.full(values.shape[:-1], np.inf)
    rank = max(1, math.ceil(count * percent / 100 - 1e-9))
    return np.asarray(np.partition(values, rank - 1, axis=-1)[..., rank - 1])


def percentile_ms(latencies_us: "Sequence[float] | NDArray[np.float64]", percent: float) -> float:
    """The percentile in milliseconds; infinite for no latencies, and if the request at its rank got no answer."""
    return float(percentile(latencies_us, percent)) / 1e3
