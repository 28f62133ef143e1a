"""The distribution of latencies as a server gives it: a histogram's counts, or the quantiles of a summary."""

import math
from collections.abc import Mapping

from perf.watch.sample import Sample

Point = tuple[float, float]
"""A share of the requests (0 to 1), and the milliseconds within which they were answered."""


def points(window: Sample | None, newest: Sample | None) -> tuple[list[Point], str]:
    """The points in order, and what they are of: the histogram of the window, else the summary of the last minute.

    Triton's own buckets begin at 100 ms. If half of the requests are faster than the first, the summary says more.
    """
    has_summary = newest is not None and bool(newest.quantiles_us)
    if window is not None and window.buckets and not (has_summary and _is_coarse(window.buckets)):
        return _of_histogram(window.buckets), "the server's histogram of this window: up to its first response"
    if newest is not None and newest.quantiles_us:
        return _of_summary(newest.quantiles_us), "the server's summary of its last minute"
    return [], ""


def _is_coarse(buckets: Mapping[float, float]) -> bool:
    """Whether at least half of the requests are within the first bound."""
    return 2 * buckets[min(buckets)] >= max(buckets.values())


def _of_summary(quantiles_us: Mapping[float, float]) -> list[Point]:
    return [(quantile, quantiles_us[quantile] / 1e3) for quantile in sorted(quantiles_us)]


def _of_histogram(buckets: Mapping[float, float]) -> list[Point]:
    """The share of requests up to each bound; what is above the last bound has no milliseconds."""
    everything = max(buckets.values())
    bounds = sorted(bound for bound in buckets if math.isfinite(bound))
    return [(buckets[bound] / everything, bound) for bound in bounds]
