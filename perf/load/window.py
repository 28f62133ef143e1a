"""The figures of a window, from the times of its requests."""

import numpy as np
from numpy.typing import NDArray

from perf.load.timings import FAILED, NOT_SENT, RIGHT, WRONG, Timings
from perf.records.load_record import Sample, Summary
from perf.records.offered_load import Load
from perf.stats.percentile import percentile

PERCENTILES = (50, 90, 95, 99)
# A request sent this long after it was due was late because of the client, not the server.
LATE_NS = 1_000_000


def latencies_us(timings: Timings) -> NDArray[np.float64]:
    """The latencies of requests from their due times, to 0.1 us, infinite without a right answer: (n,) -> (n,)."""
    latencies = np.round((timings["done"] - timings["due"]) / 1e3, 1)
    return np.where(timings["outcome"] == RIGHT, latencies, np.inf)


def sample(timings: Timings, first_ns: int) -> Sample:
    """Due time and latency of each request in order of due time; the window begins at `first_ns`."""
    ordered = np.sort(timings, order="due")
    due = (ordered["due"] - first_ns) / 1e9
    return Sample(due_s=tuple(np.round(due, 6).tolist()), latencies_us=tuple(latencies_us(ordered).tolist()))


def summary(timings: Timings, load: Load, first_ns: int, last_ns: int) -> Summary:
    """Counts and latencies of the requests that were due in the window, and the throughput of those answered in it.

    `timings` holds the requests before and after the window as well: under an overload those that were due in it are
    answered long after it, and those that are answered in it were due long before.
    """
    due = in_window(timings, first_ns, last_ns)
    ended = due["outcome"]
    answered = due[_is_answered(due)]
    latencies = (answered["done"] - answered["due"]) / 1e3
    window_s = (last_ns - first_ns) / 1e9
    rate = _answered_in(timings, first_ns, last_ns) / window_s if window_s > 0 else 0.0
    sent = due[ended != NOT_SENT]
    return Summary(
        window_s=window_s,
        right=int(np.sum(ended == RIGHT)),
        wrong=int(np.sum(ended == WRONG)),
        failed=int(np.sum(ended == FAILED)),
        not_sent=int(np.sum(ended == NOT_SENT)),
        late_sends=int(np.sum(sent["called"] - sent["due"] > LATE_NS)),
        mean_us=float(np.mean(latencies)) if len(latencies) else 0.0,
        percentiles_us={rank: float(percentile(latencies, rank)) if len(latencies) else 0.0 for rank in PERCENTILES},
        requests_per_s=rate,
        rows_per_s=rate * load.rows,
        offered_per_s=len(due) / window_s if load.open and window_s > 0 else None,
        longest_gap_s=float(np.max(np.diff(np.sort(answered["done"])), initial=0)) / 1e9,
    )


def in_window(timings: Timings, first_ns: int, last_ns: int) -> Timings:
    """The requests that were due in [first, last)."""
    return timings[(timings["due"] >= first_ns) & (timings["due"] < last_ns)]


def _is_answered(timings: Timings) -> NDArray[np.bool_]:
    return np.isin(timings["outcome"], (RIGHT, WRONG))


def _answered_in(timings: Timings, first_ns: int, last_ns: int) -> int:
    """Number of requests answered in (first, last]; a window of a number of requests ends with its last answer."""
    done = timings["done"][_is_answered(timings)]
    return int(np.sum((done > first_ns) & (done <= last_ns)))
