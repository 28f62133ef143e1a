"""The models that the tests without a server share."""

from pathlib import Path

import client_models
import pytest
from onnx import helper
from tiny_models import onnx_model


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of client_models.py, and `double`, an ONNX model with a delay of 0.2 s."""
    folder = client_models.build(tmp_path_factory.mktemp("models"))
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    config = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
    onnx_model(folder, "double", nodes, dims=(2, 2), config=config)
    return folder
