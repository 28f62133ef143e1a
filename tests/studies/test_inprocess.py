"""The share of onnxruntime's speed in the callers' process: its arithmetic and its record, not the figure."""

import time
from collections import Counter
from pathlib import Path

import pytest

from perf.records import file
from perf.studies.experiment import origin
from perf.studies.inprocess import InProcessRecord, InProcessRound, Turn, main, table
from serve.inprocess.loaded import Statistics

ROUNDS = (
    InProcessRound(alone=100.0, threads=90.0, tasks=110.0, rows_per_execution=8.0),
    InProcessRound(alone=200.0, threads=180.0, tasks=220.0, rows_per_execution=8.0),
)


def record() -> InProcessRecord:
    return InProcessRecord(
        model="m", callers=64, seconds=1.0, batch_rows=8, config_sha256="", model_sha256="", rounds=ROUNDS, **origin(())
    )


def test_the_share_is_taken_within_each_round() -> None:
    assert record().share("threads").value == pytest.approx(0.9)
    assert record().share("tasks").value == pytest.approx(1.1)
    assert [list(column.cells) for column in table(record()).columns][1] == ["150", "135", "165"]


def test_whole_executions_count_over_the_time_between_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine callers: executions of 1, 7, 8, 8 and 8 rows. The turn begins at the third's end."""
    clock, ran = 0.0, Counter[int]()
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    turn = Turn(lambda: Statistics(executions=dict(ran), ended=clock - 0.01), callers=9, seconds=1.5)
    for ended, rows in ((1.0, 1), (2.0, 7), (4.0, 8), (5.0, 8), (6.0, 8)):
        clock = ended + 0.01
        ran[rows] += 1
        for _ in range(rows):
            assert not (turn.is_over and ended < 6)
            turn.answered()
    assert turn.is_over
    assert turn.rates() == pytest.approx((8.0, 8.0))


def test_an_execution_that_runs_at_the_end_counts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four callers, 4 rows in each 2 s, for a time that ends in the middle of an execution."""
    clock = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    turn = Turn(lambda: Statistics(executions={4: int(clock / 2)}, ended=clock), callers=4, seconds=3.0)
    while not turn.is_over:
        clock += 2.0
        for _ in range(4):
            turn.answered()
    assert clock == 6.0
    assert turn.rates() == (2.0, 4.0)


def test_the_program_measures_and_writes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["text_recognition", "--callers", "8", "--seconds", "0.3", "--rounds", "2", "--results", str(tmp_path)]
    assert main(options) in (0, 1)
    assert "text_recognition, 8 callers" in capsys.readouterr().out
    written = file.read(tmp_path / "text_recognition.inprocess.json", InProcessRecord)
    assert len(written.rounds) == 2
    assert all(min(turn.alone, turn.threads, turn.tasks) > 0 for turn in written.rounds)
    assert all(1 < turn.rows_per_execution <= 8 for turn in written.rounds)


def test_a_model_without_a_graph_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "no model 'nothing'" in capsys.readouterr().err
