"""What the tests share: one real server and the model that it needs exported."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from export.__main__ import main as export
from export.repository import REPOSITORY
from serve.launcher import Server, Settings, launch


@pytest.fixture(scope="session")
def ranker() -> Path:
    """The ranker's ONNX file, exported when it is not there."""
    assert export(["ranker"]) == 0
    return REPOSITORY / "ranker" / "1" / "model.onnx"


@pytest.fixture(scope="session")
def server(ranker: Path) -> Iterator[Server]:
    """One real tritonserver with the models that need no torch, batching dynamically."""
    settings = Settings(models=("ranker", "simulated_accelerator", "text_recognition"), config_name="dynamic")
    with launch(settings) as running:
        yield running
