"""When perf_analyzer sends: its Poisson arrivals, which are the same in every run.

`RequestRateManager` draws them from a `std::mt19937` that it never seeds, so two runs at one rate differ in what the
server does and not in what it gets; a simulation of a run can be given the very same arrivals.
"""

import numpy as np
from numpy.typing import NDArray

# What the C++ standard lets `std::mt19937` begin with.
SEED = 5489
WORD = 2.0**32


def poisson(rate_per_s: float, requests: int) -> NDArray[np.float64]:
    """Due times in seconds of the first `requests` of a run with `--request-distribution poisson`.

    libstdc++ makes a uniform number of two words, the lower one first, and an exponential one of its complement.
    """
    words = np.random.RandomState(SEED)  # which begins as the standard does, unlike numpy's newer generators
    low, high = words.randint(0, 2**32, size=(requests, 2), dtype=np.uint32).astype(np.float64).T
    times: NDArray[np.float64] = np.cumsum(-np.log1p(-(low + high * WORD) / WORD**2)) / rate_per_s
    return times
