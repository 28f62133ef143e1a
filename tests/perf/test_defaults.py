"""Where programs write unasked: into folders that git ignores, so that a clone and its records stay as they are."""

from pathlib import Path

import pytest

from perf.measure import service_records
from perf.memory import __main__ as memory
from perf.pack import interference
from perf.studies.grid import __main__ as grid
from perf.studies.memory_estimate import __main__ as memory_estimate
from perf.studies.memory_estimate import operators
from perf.studies.memory_lab import __main__ as lab
from perf.studies.memory_lab import record
from perf.studies.packing import __main__ as study
from perf.studies.packing import prove
from perf.studies.prediction import __main__ as prediction
from perf.tune.tuning import Question

IGNORED = [
    Path(line)
    for line in (Path(__file__).parents[2] / ".gitignore").read_text().splitlines()
    if line.startswith("perf/results/")
]


@pytest.mark.parametrize(
    "folder",
    [
        *(service_records.RESULTS, lab.FOLDER, record.FOLDER, memory_estimate.FOLDER, operators.FOLDER),
        *(grid.RESULTS, Question.results, interference.RESULTS, study.RESULTS, prove.RESULTS, prediction.RESULTS),
    ],
    ids=str,
)
def test_what_is_written_unasked_is_ignored_by_git(folder: Path) -> None:
    assert IGNORED
    assert any(folder.is_relative_to(one) for one in IGNORED)


def test_a_model_that_is_not_exported_comes_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "resnet50" / "1" / "model.onnx"
    monkeypatch.setattr("perf.memory.command.served_file", lambda *_: path)
    assert memory.main(["resnet50"]) == 2
    assert "Export the model first: make export ARGS=resnet50." in " ".join(capsys.readouterr().err.split())
