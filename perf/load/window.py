"""The figures of a window, from the times of its requests."""

import numpy as np

from perf.load.timings import FAILED, NOT_SENT, RIGHT, WRONG, Timings
from perf.records.load_record import Sample, Summary
from perf.records.offered_load import Load
from perf.stats.percentile import percentile

PERCENTILES = (50, 90, 95, 99)
# A request sent this long after it was due was late because of the client, not the server.
LATE_NS = 1_000_000


def sample(timings: Timings, first_ns: int) -> Sample:
    """Due time and latency of each request in order of due time; the window begins at `first_ns`."""
    ordered = np.sort(timings, order="due")
    latencies = np.where(ordered["outcome"] == RIGHT, (ordered["done"] - ordered["due"]) / 1e3, np.inf)
    due = (ordered["due"] - first_ns) / 1e9
    return Sample(due_s=tuple(np.round(due, 6).tolist()), latencies_us=tuple(np.round(latencies, 1).tolist()))


def summary(timings: Timings, load: Load, first_ns: int, last_ns: int) -> Summary:
    """The summary of the requests that were due in the window [first, last)."""
    ended = timings["outcome"]
    answered = timings[(ended == RIGHT) | (ended == WRONG)]
    latencies = (answered["done"] - answered["due"]) / 1e3
    window_s = (last_ns - first_ns) / 1e9
    rate = len(answered) / window_s if window_s > 0 else 0.0
    sent = timings[ended != NOT_SENT]
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
        offered_per_s=len(timings) / window_s if load.open and window_s > 0 else None,
        longest_gap_s=float(np.max(np.diff(np.sort(answered["done"])), initial=0)) / 1e9,
    )


def in_window(timings: Timings, first_ns: int, last_ns: int) -> Timings:
    """The requests that were due in [first, last)."""
    return timings[(timings["due"] >= first_ns) & (timings["due"] < last_ns)]
