"""Marks: the faults of a measured point, with their numbers. A point that merely varies has none: see its interval."""

from collections.abc import Sequence

from perf.measure.analyzer import WINDOWS
from perf.records.measurement import Measurement

# In a closed loop the throughput is concurrency x rows / mean latency (Little's law). Requests in flight at the begin
# or end of a window cause an error of about concurrency / (2 x requests): with 68 requests 11 % at concurrency 16 and
# 3 % at concurrency 4 were measured. With more than 3 % the windows are too short or the client is too slow.
LITTLE_LIMIT = 0.03


def marks(records: Sequence[Measurement]) -> tuple[str, ...]:
    """The faults in the repeats of one point, with the worst repeat's numbers; empty if there is none."""
    little = max(little_error(record) for record in records)
    few = min(len(record.measured.windows) for record in records)
    silent = [str(record.point.repeat) for record in records if record.measured.mean_us is None]
    failed = sum(record.counters.failed_requests for record in records)
    candidates = (
        (little > LITTLE_LIMIT, f"Little's law off by {percent(little)}"),
        (few < WINDOWS, f"{few} windows of {WINDOWS}"),
        (bool(silent), f"perf_analyzer printed no summary in repeat {', '.join(silent)}"),
        (failed > 0, f"failed requests: {failed}"),
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


def percent(share: float) -> str:
    """`0.041` as `4.1 %`."""
    return f"{100 * share:.1f} %"
