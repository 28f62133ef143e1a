"""The share of onnxruntime's speed in the callers' process: its arithmetic and its record, not the figure."""

from pathlib import Path

import pytest

from perf.records import file
from perf.studies.experiment import origin
from perf.studies.inprocess import InProcessRecord, InProcessRound, main, rate, table
from triton_batching.terminal import Failure

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


def test_the_batches_at_both_ends_do_not_count() -> None:
    """Eight callers: batches of 1 and 7 rows, three of 8 in 1 s each, and 3 answers after the end."""
    answered = [1.0, *[2.0] * 7, *[3.0] * 8, *[4.0] * 8, *[5.0] * 8, *[6.0] * 3]
    assert rate(answered, callers=8, end=5.5) == 8.0
    with pytest.raises(Failure, match="8 answers to 8 callers are too few"):
        rate(answered, callers=8, end=2.5)


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
