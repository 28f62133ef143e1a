"""Two models measured in turn by onnxruntime alone."""

from pathlib import Path

import pytest
from onnx import helper
from tiny_models import onnx_model

from perf.compare.ceilings import main


def doubled(repository: Path, name: str, *, largest: int = 8) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    onnx_model(repository, name, nodes, dims=(4, 4), max_batch_size=largest)


def test_each_batch_size_has_a_ratio_with_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf.measure.ceiling_run.ROUND_S", 0.01)
    doubled(tmp_path, "old", largest=4)
    doubled(tmp_path, "new", largest=8)
    assert main(["old", "new", "--rounds", "3", "--threads", "1", "--repository", str(tmp_path)]) == 0
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    # The batch sizes that both models take.
    assert [cells[1].strip() for cells in lines] == ["1", "2", "4"]
    for cells in lines:
        old, new = (float(cell.replace(",", "")) for cell in cells[2:4])
        assert old > 0
        assert new > 0
        assert " to " in cells[4]
        assert cells[5].strip()


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doubled(tmp_path, "old")
    assert main(["old", "old", "--repository", str(tmp_path)]) == 2
    assert "named twice" in capsys.readouterr().err
    assert main(["old", "gone", "--repository", str(tmp_path)]) == 2
    assert "no model 'gone'" in capsys.readouterr().err
