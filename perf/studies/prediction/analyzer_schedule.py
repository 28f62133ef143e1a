"""The Poisson arrivals of perf_analyzer, which are the same in every run.

`RequestRateManager` draws them from a `std::mt19937` that it never seeds, so a simulation can use exactly the arrivals
of a run.
"""

import numpy as np
from numpy.typing import NDArray

# The default seed of `std::mt19937`.
SEED = 5489
WORD = 2.0**32


def poisson(rate_per_s: float, requests: int) -> NDArray[np.float64]:
    """Due times in seconds of the first `requests` of a run with `--request-distribution poisson`.

    libstdc++ makes a uniform number of two words, the lower word first, and an exponential number of its complement.
    """
    words = np.random.RandomState(SEED)  # seeds like the C++ standard, unlike numpy's newer generators
    low, high = words.randint(0, 2**32, size=(requests, 2), dtype=np.uint32).astype(np.float64).T
    times: NDArray[np.float64] = np.cumsum(-np.log1p(-(low + high * WORD) / WORD**2)) / rate_per_s
    return times
