"""Marks: the reasons, with their numbers, not to trust a measured point."""

from collections.abc import Sequence

import numpy as np

from perf.measure.analyzer import WINDOWS
from perf.records.measurement import Measurement

# In a closed loop the throughput is concurrency x rows / mean latency (Little's law). Requests in flight at the begin
# or end of a window cause an error of about concurrency / (2 x requests): with 68 requests 11 % at concurrency 16 and
# 3 % at concurrency 4 were measured. With more than 3 % the windows are too short or the client is too slow.
LITTLE_LIMIT = 0.03
# Other programs on the machine change a rate by a few percent; perf_analyzer's limit for "stable" is also 10 %.
SPREAD_LIMIT = 0.10


def marks(records: Sequence[Measurement], ceiling_spread: float | None) -> tuple[str, ...]:
    """The reasons against the repeats of one point, with the worst repeat's numbers; empty if the point is stable."""
    little = max(little_error(record) for record in records)
    few = min(len(record.measured.windows) for record in records)
    windows = max(window_spread(record) for record in records)
    repeats = spread([record.measured.throughput_rows_per_s for record in records])
    silent = [str(record.point.repeat) for record in records if record.measured.mean_us is None]
    failed = sum(record.counters.failed_requests for record in records)
    ceiling = ceiling_spread or 0.0
    candidates = (
        (little > LITTLE_LIMIT, f"Little's law off by {percent(little)}"),
        (few < WINDOWS, f"{few} windows of {WINDOWS}"),
        (windows > SPREAD_LIMIT, f"windows spread {percent(windows)}"),
        (repeats > SPREAD_LIMIT, f"repeats spread {percent(repeats)}"),
        (bool(silent), f"perf_analyzer printed no summary in repeat {', '.join(silent)}"),
        (failed > 0, f"failed requests: {failed}"),
        (ceiling > SPREAD_LIMIT, f"ceiling spread {percent(ceiling)}"),
    )
    return tuple(reason for holds, reason in candidates if holds)


def little_error(record: Measurement) -> float:
    """|concurrency x rows / mean latency / throughput - 1|; 0 without a summary, which is another mark."""
    measured, load = record.measured, record.point.load
    if measured.mean_us is None:
        return 0.0
    if not measured.mean_us or not measured.throughput_rows_per_s:
        return 1.0
    expected = load.concurrency * load.request_rows / (measured.mean_us / 1e6)
    return abs(expected / measured.throughput_rows_per_s - 1)


def window_spread(record: Measurement) -> float:
    """The spread of the throughput over perf_analyzer's windows."""
    return spread([window.throughput_rows_per_s for window in record.measured.windows])


def spread(values: Sequence[float]) -> float:
    """(max - min) / median; 0 if the median is 0 or there are no values."""
    if not values:
        return 0.0
    middle = float(np.median(values))
    return (max(values) - min(values)) / middle if middle else 0.0


def percent(share: float) -> str:
    """`0.041` as `4.1 %`."""
    return f"{100 * share:.1f} %"
