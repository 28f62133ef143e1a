"""`export.add --variable-length`: what is written for a graph whose padded requests answer as alone."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from added_graphs import graph
from onnx import helper
from padded_models import encoder

from export.add.__main__ import main
from export.graph.onnx_graph import load
from export.repository import read_config


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


def test_an_added_model_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    (encoder(tmp_path / "source") / "1" / "model.onnx").rename("encoder.onnx")
    common = ["encoder.onnx", "--repository", "models", "--variable-length"]
    assert main([*common, "--pad-value", "none=0"]) == 2
    assert not Path("models/encoder").exists()
    assert main(common) == 0
    printed, config = capsys.readouterr(), Path("models/encoder/config.pbtxt")
    shown = f"{printed.err}\n{printed.out}\n-- config.pbtxt\n{config.read_text()}"
    golden(
        "export_add_variable_length",
        shown,
        masks={
            r"(\w+: answers in batches of .*\n)+": "ANSWERS IN BATCHES\n",
            r"(are bit-equal to those alone|differ from those alone by .*)": "_DIFFERENCE_",
            r"(at most|batch tried had) \d+": r"\1 _MOST_",
            r"(with themselves alone:) .*": r"\1 _DIFFERENCE_",
            r'(pad_longest.*string_value: ")\d+': r"\1_MOST_",
        },
    )
    assert [(tensor.name, tensor.allow_ragged_batch) for tensor in read_config(config).input] == [("tokens", True)]
