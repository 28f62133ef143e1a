"""The cap that aimd finds: how the steps are read from the log, and what the table makes of them."""

from pathlib import Path

import pytest

from perf.studies.aimd_cap import (
    SLA_MS,
    CapCase,
    CapStep,
    band,
    batches_until,
    late_share,
    parts,
    read,
    read_steps,
    shown,
    write,
)


def test_steps_are_read_from_the_servers_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = 'I1120 17:35:17 1 policy_loop.py:9] "batch_policy m_0_0: {}, {} late"\n'
    log.write_text(
        "I1120 17:35:17 1 server.cc:1] ready\n"
        + line.format("4 rows in 22.107 ms, cap 4.90, 9 requests waiting", 0)
        + line.format("21 rows in 30.604 ms, cap 21.00, 0 requests waiting", 1)
    )
    steps = read_steps(log)
    assert steps == [CapStep(rows=4, ms=22.107, cap=4.9), CapStep(rows=21, ms=30.604, cap=21.0)]
    assert (band(steps), late_share(steps, SLA_MS), batches_until(steps, 3)) == ((4, 21), 0.5, None)


def test_a_record_comes_back(tmp_path: Path) -> None:
    steps = [CapStep(rows=1 + at % 3, ms=20.6, cap=3.0) for at in range(100)]
    case = CapCase(name="mine", slo_ms=30.0, batches=100, row_ms_after=1.5, after=70)
    assert read(write(tmp_path, [(case, steps)], "now", ["python"])) == [(case, steps)]
    before, behind = parts(case, steps)
    assert (len(before), len(behind)) == (10, 30)
    assert shown([(case, steps)]).row_count == 1


@pytest.mark.parametrize("rows", [5, 6])
def test_batches_until_counts_those_before(rows: int) -> None:
    steps = [CapStep(rows=size, ms=1.0, cap=1.0) for size in (9, 8, rows, 9)]
    assert batches_until(steps, 6) == 2
