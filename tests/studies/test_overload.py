"""Overload: what is asked and computed of a trial, its record, and one short trial on real servers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perf.load.timings import FAILED, NOT_SENT, REQUEST, RIGHT, WRONG, Timings
from perf.load.variant import read as config_of
from perf.records.file import RecordError
from perf.studies.overload.__main__ import main
from perf.studies.overload.bound import bounded
from perf.studies.overload.crowd import CrowdCounts
from perf.studies.overload.record import OverloadRecord, Phase, load, read
from perf.studies.overload.schedule import Schedule
from perf.studies.overload.table import markdown
from perf.studies.overload.trial import OverloadTrial, recovery_s
from triton_batching.terminal import Mistake

MS = 1_000_000
SECOND = 1000 * MS
SCHEDULE = Schedule(capacity_per_s=100, times=10, seconds=4, calm_s=2)


def requests(*outcomes: tuple[float, float, int]) -> Timings:
    """Requests that were due at a second, ended so many ms later, in this way."""
    rows = []
    for number, (due_s, ms, outcome) in enumerate(outcomes):
        due = int(due_s * SECOND)
        rows.append((0, number, due, due, due, due, due + int(ms * MS), outcome))
    return np.array(rows, dtype=REQUEST)


def trial(**changed: object) -> OverloadTrial:
    return replace(
        OverloadTrial(
            model="simulated_accelerator",
            config_name="dynamic",
            repository=Path("model_repository"),
            bound="own",
            time_scale=1.0,
            target_ms=50.0,
            times=10.0,
            seconds=4.0,
            give_up_ms=2000.0,
            calm_s=2.0,
            command=("python",),
        ),
        **changed,  # type: ignore[arg-type]
    )


def test_the_load_is_half_then_times_then_half() -> None:
    due = SCHEDULE.due_s()
    assert np.all(np.diff(due) >= 0)
    counts, _ = np.histogram(due, [0, SCHEDULE.begin_s, SCHEDULE.end_s, SCHEDULE.over_s])
    assert counts == pytest.approx([100, 4000, 100], rel=0.25)
    assert np.array_equal(due, SCHEDULE.due_s())


def test_how_requests_of_a_phase_ended() -> None:
    timings = requests(
        (0, 10, RIGHT), (0, 90, RIGHT), (1, 10, WRONG), (1, 5, FAILED), (2, 2000, FAILED), (2, 0, NOT_SENT)
    )
    phase = Phase.of(timings, due=7, seconds=2.0, target_ms=50, timeout_s=2.0)
    counts = (phase.right, phase.in_time, phase.wrong, phase.refused, phase.gave_up, phase.not_sent, phase.lost)
    assert counts == (2, 1, 1, 1, 1, 1, 1)
    assert (phase.p50_ms, phase.p99_ms, phase.refused_p99_ms, phase.in_time_per_s) == (10.0, 90.0, 5.0, 0.5)


def test_recovery_is_the_first_of_twenty_in_a_row_that_are_in_time() -> None:
    late = [(1 + number / 10, 100.0, RIGHT) for number in range(5)]
    good = [(2 + number / 10, 10.0, RIGHT) for number in range(20)]
    assert recovery_s(requests(*late, *good), SECOND, 50) == pytest.approx(1.0)
    assert recovery_s(requests(*late, *good[:19]), SECOND, 50) is None
    refused = [(2 + number / 10, 1.0, FAILED) for number in range(30)]
    assert recovery_s(requests(*refused), SECOND, 50) is None


def seen(partial: bool = False) -> CrowdCounts:
    due = SCHEDULE.due_s()
    ends = [
        (float(at), 10.0, RIGHT if number % 10 == 0 or at < 2 or at > 6 else FAILED) for number, at in enumerate(due)
    ]
    return CrowdCounts(
        timings=requests(*ends),
        errors={"RejectedError": 9},
        memory=tuple((float(at), 100_000_000) for at in range(8)),
        start_ns=0,
        until_s=3.0 if partial else SCHEDULE.over_s,
        partial=partial,
        cores_busy=0.5,
    )


def test_a_record_comes_back_and_says_what_was_kept(tmp_path: Path) -> None:
    record = trial().record(seen(), SCHEDULE)
    assert record.during.lost == record.before.lost == record.after.lost == 0
    assert record.share == pytest.approx(1.0, abs=0.1)
    assert all(record.gates.values())
    path = record.write(tmp_path)
    assert load(path) == record
    assert list(read(tmp_path)) == [record]
    assert markdown([record]).count("\n") == 2
    assert record.file_name != trial(bound="none").record(seen(), SCHEDULE).file_name
    path.write_text("{}")
    with pytest.raises(RecordError, match="not a record"):
        load(path)


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"memory_mb": (100.0, 100.0, 200.0, 200.0, 200.0)}, "memory flat"),
        ({"errors": {"ServerFailureError": 1}}, "errors typed"),
        ({"recovery_s": None}, "recovered in <= 5 s"),
        ({"capacity_per_s": 200.0}, "answered in time >= 0.9 of the capacity"),
    ],
)
def test_the_gate_sees_what_is_not_kept(changed: dict[str, object], broken: str) -> None:
    record: OverloadRecord = replace(trial().record(seen(), SCHEDULE), **changed)  # type: ignore[arg-type]
    assert [name for name, kept in record.gates.items() if not kept] == [broken]


def test_what_was_seen_until_it_was_stopped_is_kept() -> None:
    record = trial().record(seen(partial=True), SCHEDULE)
    assert record.partial
    assert (record.before.seconds, record.during.seconds, record.after.due) == (2.0, 1.0, 0)


def test_bounds() -> None:
    config = config_of("simulated_accelerator", "dynamic")
    assert bounded(config, "own") == config
    none = bounded(config, "none")
    assert "queue_limit_ms" not in none.parameters
    both = bounded(config, "timeout:400+size:64").dynamic_batching.default_queue_policy
    assert (both.default_timeout_microseconds, both.max_queue_size) == (400_000, 64)
    assert bounded(config, "deadline:400").parameters["slo_ms"].string_value == "400"
    for wrong in ("often", "size:many", "limit:"):
        with pytest.raises(Mistake, match=r"is no bound\. Write own, none"):
            bounded(config, wrong)


@pytest.mark.parametrize(
    "arguments", [["--times", "0"], ["--bound", "x"], ["--time-scale", "2", "--config-name", "no"]]
)
def test_a_mistake_is_said_before_a_server_starts(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulated_accelerator", "--target-ms", "1000", *arguments]) == 2
    assert capsys.readouterr().err


@pytest.mark.server
def test_a_short_trial_accounts_for_every_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulated_accelerator", "--config-name", "dynamic", "--target-ms", "2000", "--results", str(tmp_path)]
    arguments += ["--time-scale", "20", "--seconds", "4", "--calm", "2"]
    assert main(arguments) in (0, 1)
    (record,) = read(tmp_path)
    assert record.during.due > 0
    assert (
        record.during.right + record.during.refused + record.during.gave_up + record.during.not_sent
        == record.during.due
    )
    assert record.during.refused
    assert set(record.errors) == {"RejectedError"}
    # A record is not measured again.
    assert main(arguments) in (0, 1)
    assert list(read(tmp_path)) == [record]
    assert "RejectedError" not in capsys.readouterr().out
