"""A repository that records are of."""

from pathlib import Path

import pytest

from tests.perf.report.index.test_index import CONFIG


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model with a variant and a model file."""
    folder = tmp_path / "repository"
    for path, text in (("config.pbtxt", CONFIG), ("configs/baseline.pbtxt", CONFIG), ("1/model.onnx", "graph")):
        (folder / "m" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "m" / path).write_text(text)
    return folder
