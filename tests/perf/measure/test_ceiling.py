"""The ceiling: onnxruntime alone, with a stated thread count."""

from pathlib import Path

import numpy as np
import pytest
from tiny_models import lookup

from perf.measure.ceiling import main
from perf.measure.ceiling_run import CeilingError, batch_sizes, measure, merge, plan


def test_batch_sizes() -> None:
    assert batch_sizes(64) == [1, 2, 4, 8, 16, 32, 64]
    assert batch_sizes(6) == [1, 2, 4, 6]
    assert batch_sizes(1) == [1]


def test_every_batch_size_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf.measure.ceiling_run.ROUND_S", 0.01)
    monkeypatch.setattr(
        "perf.measure.ceiling_run.sample", lambda config, rows: {"x": np.ones((rows, 1), dtype=np.float32)}
    )
    lookup(tmp_path)
    planned = plan("lookup", threads=1, repository=tmp_path)
    ceiling = merge([measure(planned, repository=tmp_path) for _ in range(3)])
    assert sorted(ceiling.rows_per_s) == [1, 2, 4, 8]
    assert all(len(rounds) == 3 and min(rounds) > 0 for rounds in ceiling.rows_per_s.values())
    assert ceiling.threads == 1
    assert ceiling.started_at


def test_a_python_model_has_no_ceiling() -> None:
    with pytest.raises(CeilingError, match="not an ONNX model"):
        plan("simulated_accelerator")


def test_the_program(
    ranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf.measure.ceiling_run.ROUND_S", 0.01)
    assert main(["ranker", "--threads", "1", "--results", str(tmp_path)]) == 0
    assert "ranker, 1 threads" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["ranker.ceiling.t1.r1.json"]
    assert main(["nowhere"]) == 2
