"""The interval on a share of requests, for requests that depend on each other."""

import scipy  # its `special` is loaded at the first interval

from perf.stats.interval import LEVEL, Interval


def share(requests: int, late: int, *, design_effect: float = 1.0, level: float = LEVEL) -> Interval:
    """`late` / `requests` with its interval of Clopper and Pearson (Biometrika 26, 1934).

    Both numbers are divided by the `design_effect` first (see `perf.stats.dependence`), as `latency_target.judge` does:
    the upper end is below a share if and only if `judge` passes at (1 + `level`) / 2. Without requests it is 0 to 1.
    """
    count, over, error = requests / design_effect, late / design_effect, (1 - level) / 2
    # Quantiles of beta distributions invert the binomial sums, and are defined between whole numbers as well.
    low = float(scipy.special.betaincinv(over, count - over + 1, error)) if late else 0.0
    high = float(scipy.special.betaincinv(over + 1, count - over, 1 - error)) if late < requests else 1.0
    value = late / requests if requests else 0.0
    return Interval(value=value, low=low, high=high, level=level, count=requests, method="Clopper-Pearson")
