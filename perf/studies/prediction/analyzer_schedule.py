"""The open loop of perf_analyzer: its Poisson arrivals, which are the same in every run, and its longer way.

`RequestRateManager` draws them from a `std::mt19937` that it never seeds, so a simulation can use exactly the arrivals
of a run.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf.measure.service_profile import ServiceTimes
from perf.measure.service_way import Way

# The default seed of `std::mt19937`.
SEED = 5489
WORD = 2.0**32
# The way of a lone request among few Poisson arrivals over that in a closed loop of one: its threads of an open loop
# sleep between requests, and it sends by another path. For records without their own; the median over three models.
ASLEEP = 2.4


def open_way(ramp: ServiceTimes) -> Way:
    """The way of perf_analyzer's requests, with that of its open loop."""
    lone_us = ramp.way.lone_us
    return replace(ramp.way, open_lone_us=ASLEEP * lone_us if ramp.rare_way_us is None else ramp.rare_way_us)


def poisson(rate_per_s: float, requests: int) -> NDArray[np.float64]:
    """Due times in seconds of the first `requests` of a run with `--request-distribution poisson`.

    libstdc++ makes a uniform number of two words, the lower word first, and an exponential number of its complement.
    """
    words = np.random.RandomState(SEED)  # seeds like the C++ standard, unlike numpy's newer generators
    low, high = words.randint(0, 2**32, size=(requests, 2), dtype=np.uint32).astype(np.float64).T
    times: NDArray[np.float64] = np.cumsum(-np.log1p(-(low + high * WORD) / WORD**2)) / rate_per_s
    return times
