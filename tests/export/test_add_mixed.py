"""Graphs of which some inputs have no axis for rows: served with `max_batch_size: 0`, and the reason is said."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from added_graphs import graph, scaled
from onnx import TensorProto, helper

from export.add.__main__ import main
from export.repository import faults, read_config


def test_an_input_that_was_exported_for_one_row_still_gets_its_rows(tmp_path: Path) -> None:
    """Where the fixed axis can become a batch axis, every request has its own."""
    other = helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 4])
    nodes = [helper.make_node("Add", ["x", "other"], ["y"])]
    path = graph(tmp_path / "sum.onnx", nodes, takes=("batch", 4), gives=("batch", 4), others=[other])
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    assert read_config(tmp_path / "models" / "sum" / "config.pbtxt").max_batch_size == 16


def test_a_table_that_is_multiplied_is_no_batch(tmp_path: Path) -> None:
    """[8, 4] beside [batch, 8]: no row of it runs alone."""
    table = helper.make_tensor_value_info("table", TensorProto.FLOAT, [8, 4])
    nodes = [helper.make_node("MatMul", ["x", "table"], ["y"])]
    path = graph(tmp_path / "m.onnx", nodes, takes=("batch", 8), gives=("batch", 4), others=[table])
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    assert read_config(tmp_path / "models" / "m" / "config.pbtxt").max_batch_size == 0
    assert main([str(path), "--repository", str(tmp_path / "models"), "--name", "v", "--variable-length"]) != 0


def test_inputs_without_rows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    """The file stays the user's: the constants of the proof are not in it."""
    path, repository = scaled(tmp_path / "scaled.onnx"), tmp_path / "models"
    assert main([str(path), "--repository", str(repository)]) == 0
    assert main([str(scaled(tmp_path / "mixed.onnx", mixes=True)), "--repository", str(repository)]) == 0
    scalar = graph(tmp_path / "scalar.onnx", [helper.make_node("Neg", ["x"], ["y"])], takes=(), gives=())
    assert main([str(scalar), "--repository", str(repository)]) == 1
    printed = capsys.readouterr()
    golden("export_add_mixed", f"{printed.out}\n{printed.err}", masks={r"\d\.\de[+-]\d\d": "_ERROR_"})
    config = read_config(repository / "scaled" / "config.pbtxt")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert {tensor.name: list(tensor.dims) for tensor in config.input} == {"x": [-1, 8], "table": [4], "scale": [1]}
    assert list(faults(repository)) == []
    written = onnx.load(repository / "scaled" / "1" / "model.onnx")
    assert [value.name for value in written.graph.input] == [value.name for value in onnx.load(path).graph.input]
    assert [tensor.name for tensor in written.graph.initializer] == ["w"]
    assert main([str(scalar), "--batching", "none", "--repository", str(repository)]) == 0
