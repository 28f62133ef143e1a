from dataclasses import replace
from pathlib import Path

import pytest
from charts import rows

from perf.measure.timeline_run import record
from perf.records import batch_timeline
from perf.records.batch_timeline import BatchTimeline, TimedRequest
from perf.report.figure import Palette
from perf.report.sweep.timeline import timeline
from tests.perf.report.sweep.test_summary import MACHINE

ALONE = BatchTimeline(
    model="m",
    config_name="baseline",
    delay_us=None,
    max_batch_size=8,
    load="3 requests",
    machine=MACHINE,
    versions={},
    started_at="2030-01-01T00:00:00+00:00",
    command=("python",),
    requests=tuple(
        TimedRequest(arrived_ms=at, started_ms=10.0 * at, ended_ms=10.0 * at + 10, rows=1) for at in (0.0, 1.0, 2.0)
    ),
)
# The first runs alone, the others together; their starts differ by what the server takes to note them.
TOGETHER = replace(
    ALONE,
    config_name="dynamic",
    delay_us=0,
    requests=tuple(
        TimedRequest(arrived_ms=at, started_ms=start, ended_ms=end, rows=1)
        for at, start, end in ((0.0, 0.1, 10.0), (1.0, 10.0, 20.0), (2.0, 10.01, 20.0))
    ),
)


def test_requests_that_run_together_are_one_box() -> None:
    figure = timeline((ALONE, TOGETHER), Palette.of(["baseline", "dynamic"]))
    boxes = rows(figure, "rect")
    assert [(box["configuration"], box["requests together"]) for box in boxes] == [
        *[("baseline", "1")] * 3,
        ("dynamic", "1"),
        ("dynamic", "2"),
    ]
    assert [wait["waited"] for wait in rows(figure, "bar")] == [
        "0.0 ms",
        "9.0 ms",
        "18.0 ms",
        "0.1 ms",
        "9.0 ms",
        "8.0 ms",
    ]
    assert "Executions needed: baseline: 3; dynamic: 2" in figure.caption


@pytest.mark.server
def test_a_server_s_traces_become_a_timeline(tmp_path: Path) -> None:
    """A delay longer than the whole load forms full batches of 8 from 24 requests, whatever the machine does."""
    found = record("simulated_accelerator", "dynamic", tmp_path, delay_us=3_000_000, progress=print)
    assert [len(batch) for batch in found.batches] == [8, 8, 8]
    assert batch_timeline.read(tmp_path) == (found,)
    for request in found.requests:
        assert request.arrived_ms <= request.started_ms < request.ended_ms
