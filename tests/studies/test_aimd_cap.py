"""The cap that aimd finds: how the batches are read from the log, and what the table makes of them."""

from pathlib import Path

import pytest

from perf.records import file
from perf.studies.aimd_cap import (
    SLA_MS,
    CapBatch,
    CapRecord,
    MeasuredCase,
    band,
    batches_until,
    late_share,
    read_batches,
    table,
)
from perf.studies.experiment import origin


def test_batches_are_read_from_the_servers_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = 'I1120 17:35:17 1 policy_loop.py:9] "batch_policy m_0_0: {}, {} late"\n'
    log.write_text(
        "I1120 17:35:17 1 server.cc:1] ready\n"
        + line.format("4 rows in 22.107 ms, cap 4.90, 9 requests waiting", 0)
        + line.format("21 rows in 30.604 ms, cap 21.00, 0 requests waiting", 1)
    )
    batches = read_batches(log)
    assert batches == [CapBatch(4, 22.107, 4.9), CapBatch(21, 30.604, 21.0)]
    assert (band(batches), late_share(batches, SLA_MS), batches_until(batches, 3)) == ((4, 21), 0.5, None)


def test_a_record_comes_back(tmp_path: Path) -> None:
    batches = tuple(CapBatch(1 + at % 3, 20.6, 3.0) for at in range(100))
    case = MeasuredCase(name="mine", slo_ms=30.0, batches=100, row_ms_after=1.5, after=70, steps=batches)
    record = CapRecord(cases=(case,), **origin(["python"], "now"))
    assert file.read(file.write(record, tmp_path / "aimd_cap.json"), CapRecord) == record
    assert (len(case.settled), len(case.after_change)) == (10, 30)
    assert table([case]).row_count == 1


@pytest.mark.parametrize("rows", [5, 6])
def test_batches_until_counts_those_before(rows: int) -> None:
    batches = [CapBatch(size, 1.0, 1.0) for size in (9, 8, rows, 9)]
    assert batches_until(batches, 6) == 2
