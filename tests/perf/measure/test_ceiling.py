"""The ceiling: onnxruntime alone, with a stated thread count."""

from pathlib import Path

import pytest

from perf.measure.ceiling import main
from perf.measure.ceiling_run import CeilingError, plan


def test_a_python_model_has_no_ceiling() -> None:
    with pytest.raises(CeilingError, match="not an ONNX model"):
        plan("simulated_accelerator")


@pytest.mark.slow
def test_the_program(
    ranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf.measure.ceiling_run.ROUND_S", 0.01)
    assert main(["ranker", "--threads", "1", "--results", str(tmp_path)]) == 0
    assert "ranker, 1 threads" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["ranker.ceiling.t1.r1.json"]
    assert main(["nowhere"]) == 2
