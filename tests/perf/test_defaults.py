"""Programs write by default into folders that git ignores, so that a clone stays as it is."""

from pathlib import Path

import pytest

from perf.measure import ramp_plan
from perf.memory import __main__ as memory
from perf.tune.tuning import Question

IGNORED = [
    Path(line)
    for line in (Path(__file__).parents[2] / ".gitignore").read_text().splitlines()
    if line.startswith("perf/results/")
]


@pytest.mark.parametrize(
    "folder",
    [ramp_plan.RESULTS, Question.results],
    ids=str,
)
def test_the_default_folder_of_records_is_ignored_by_git(folder: Path) -> None:
    assert IGNORED
    assert any(folder.is_relative_to(ignored) for ignored in IGNORED)


def test_a_model_that_is_not_exported_comes_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "resnet50" / "1" / "model.onnx"
    monkeypatch.setattr("perf.memory.command.served_file", lambda *_: path)
    assert memory.main(["resnet50"]) == 2
    assert "Export it: make export ARGS=resnet50." in " ".join(capsys.readouterr().err.split())
