"""`export.add --variable-length`: what is written for a graph whose padded requests answer as alone, and served."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from added_graphs import graph
from google.protobuf import text_format
from onnx import helper
from padded_models import TABLE, encoder, expected
from sleepers import PLAIN
from streams import Stream, counted
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add import notes
from export.add.__main__ import main
from export.graph.onnx_graph import load
from export.repository import read_config
from serve.launcher import Settings, launch


def test_lengths_that_must_be_equal_get_one_name(tmp_path: Path) -> None:
    """Then the mask is known to follow the tokens, and the backend refuses a request that has two lengths."""
    model = onnx.load(encoder(tmp_path / "source") / "1" / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "tokens_length"
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "mask_length"
    onnx.save(model, tmp_path / "apart.onnx")
    assert main([str(tmp_path / "apart.onnx"), "--variable-length", "--repository", str(tmp_path / "models")]) == 0
    parameters = read_config(tmp_path / "models" / "apart" / "config.pbtxt").parameters
    assert parameters["pad_mask"].string_value == "mask=tokens[1]"
    written = load(tmp_path / "models" / "apart" / "1" / "model.onnx")
    assert {value.type.tensor_type.shape.dim[1].dim_param for value in written.graph.input} == {"tokens_length"}


def test_an_output_that_is_declared_with_one_length_is_open(tmp_path: Path) -> None:
    """As torch's dynamo exporter writes an LSTM: its steps are declared with the length of the example."""
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    path = graph(tmp_path / "fixed.onnx", nodes, takes=("batch", "length"), gives=("batch", 12))
    assert main([str(path), "--variable-length", "--repository", str(tmp_path / "models")]) == 0
    config = read_config(tmp_path / "models" / "fixed" / "config.pbtxt")
    assert list(config.output[0].dims) == [-1]
    assert config.parameters["cut"].string_value == "y[1]=x[1]"


def test_a_reader_without_a_terminal_gets_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "SILENT_S", 0.0)
    path = graph(
        tmp_path / "neg.onnx",
        [helper.make_node("Neg", ["x"], ["y"])],
        takes=("batch", "length"),
        gives=("batch", "length"),
    )
    assert main([str(path), "--variable-length", "--repository", str(tmp_path / "models")]) == 0
    said = capsys.readouterr().err
    assert "neg: requests of 1 elements have answered alone" in said
    assert re.search(r"neg: comparing \d+ requests padded to \d+ elements", said)


def test_an_added_model_says_why_and_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = encoder(tmp_path / "source") / "1" / "model.onnx"
    common = ["--repository", str(tmp_path / "models"), "--name", "encoder", "--variable-length"]
    assert main([str(source), *common, "--pad-value", "none=0"]) == 2
    assert "no input of that name varies in length. These do: mask, tokens" in capsys.readouterr().err
    assert not (tmp_path / "models" / "encoder").exists()
    assert main([str(source), *common]) == 0
    printed = capsys.readouterr().out
    assert "clients do not send mask: the server makes it, 0 for padding" in " ".join(printed.split())
    text = (tmp_path / "models" / "encoder" / "config.pbtxt").read_text()
    assert "onnxruntime makes two instances" not in text  # true of the C++ backend alone
    assert "C++ backend ignores" not in text
    config = text_format.Parse(text, ModelConfig())
    assert config.backend == "onnxruntime_padded"
    assert [(tensor.name, tensor.allow_ragged_batch) for tensor in config.input] == [("tokens", True)]
    assert {key: value.string_value for key, value in config.parameters.items() if key != "queue_limit_ms"} == {
        "pad": "tokens[1]=0",
        "pad_mask": "mask=tokens[1]",
        "cut": "each[1]=tokens[1]",
        "padding_budget": "latency",
    }


@pytest.mark.server
def test_an_added_model_answers_any_lengths_from_one_batch(tmp_path: Path) -> None:
    source = encoder(tmp_path / "source") / "1" / "model.onnx"
    added = ["--repository", str(tmp_path / "models"), "--max-batch-size", "4", "--batch-timeout-us", "900000"]
    assert main([str(source), "--name", "any", "--variable-length", *added]) == 0
    assert read_config(tmp_path / "models" / "any" / "config.pbtxt").max_batch_size == 4
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, len(TABLE), size=(1, length)) for length in (3, 30, 1, 9)]
    with (
        launch(Settings(models=("any",), repository=tmp_path / "models", arguments=PLAIN)) as server,
        Stream(server.grpc_url) as stream,
    ):
        answers = stream.send("any", [{"tokens": each} for each in tokens])
        assert counted(server.grpc_url, "any", executions=1).batches == {4: 1}
    for each, answer in zip(tokens, answers, strict=True):
        assert isinstance(answer, dict), answer
        for name, wanted in expected(each).items():
            np.testing.assert_allclose(answer[name].astype(np.float32), wanted, rtol=1e-5, atol=1e-5)
