"""The cap that aimd found on a real server: the committed record, and how its numbers are read."""

from pathlib import Path

import pytest

from perf.studies.aimd_cap import (
    CASES,
    SLA_MS,
    Case,
    Step,
    band,
    batches_until,
    late_share,
    parts,
    read,
    read_steps,
    shown,
    write,
)

RECORD = Path("perf/studies/results/policy/aimd_cap.json")
FOUND = {case.name: (case, steps) for case, steps in read(RECORD)}


def test_the_record_is_of_all_cases() -> None:
    assert [case for case, _ in FOUND.values()] == list(CASES)
    assert all(len(steps) == case.batches for case, steps in FOUND.values())
    # The device takes what it says, and what the server adds is less than the time of a row in nearly all batches.
    for case, steps in FOUND.values():
        own = [
            20 + (case.row_ms_after if case.after and at >= case.after else 0.5) * one.rows
            for at, one in enumerate(steps)
        ]
        assert all(step.ms >= ms for step, ms in zip(steps, own, strict=True))
        assert sum(step.ms > ms + 0.5 for step, ms in zip(steps, own, strict=True)) <= 0.05 * len(steps)


def test_the_cap_settles_below_the_target() -> None:
    """On a curve without overhead it cycles in 18..21; 0.1 ms of overhead make the batch of 20 rows late already."""
    settled, _ = parts(*FOUND["target 30 ms"])
    smallest, largest = band(settled)
    assert 17 <= smallest <= 18
    assert 20 <= largest <= 21
    assert late_share(settled) <= 0.40


def test_headroom_is_kept() -> None:
    settled, _ = parts(*FOUND["target 27 ms"])
    smallest, largest = band(settled)
    assert 12 <= smallest <= 13
    assert 14 <= largest <= 15
    assert late_share(settled) <= 0.01


def test_the_cap_recovers() -> None:
    """20 + 1.5 x 6 = 29 ms: at most 6 rows are in time."""
    _, behind = parts(*FOUND["rows cost three times as much"])
    recovered = batches_until(behind, 6)
    assert recovered is not None
    assert recovered <= 20
    smallest, largest = band(behind[recovered:])
    assert smallest >= 5
    assert largest == 7


def test_steps_are_read_from_the_servers_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = 'I1120 17:35:17 1 policy_loop.py:9] "batch_policy m_0_0: {}, {} late"\n'
    log.write_text(
        "I1120 17:35:17 1 server.cc:1] ready\n"
        + line.format("4 rows in 22.107 ms, cap 4.90, 9 requests waiting", 0)
        + line.format("21 rows in 30.604 ms, cap 21.00, 0 requests waiting", 1)
    )
    steps = read_steps(log)
    assert steps == [Step(rows=4, ms=22.107, cap=4.9), Step(rows=21, ms=30.604, cap=21.0)]
    assert (band(steps), late_share(steps, SLA_MS), batches_until(steps, 3)) == ((4, 21), 0.5, None)


def test_a_record_comes_back(tmp_path: Path) -> None:
    steps = [Step(rows=1 + at % 3, ms=20.6, cap=3.0) for at in range(100)]
    case = Case(name="mine", slo_ms=30.0, batches=100, row_ms_after=1.5, after=70)
    assert read(write(tmp_path, [(case, steps)], "now", ["python"])) == [(case, steps)]
    before, behind = parts(case, steps)
    assert (len(before), len(behind)) == (10, 30)
    assert shown([(case, steps)]).row_count == 1


@pytest.mark.parametrize("rows", [5, 6])
def test_batches_until_counts_those_before(rows: int) -> None:
    steps = [Step(rows=size, ms=1.0, cap=1.0) for size in (9, 8, rows, 9)]
    assert batches_until(steps, 6) == 2
