"""Graphs of which some inputs have no axis for rows: served with `max_batch_size: 0`, and the reason is said."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from added_graphs import graph, weights
from numpy.typing import NDArray
from onnx import TensorProto, helper
from sleepers import PLAIN
from streams import Stream, counted

from export.add.__main__ import main
from export.graph.onnx_graph import load
from export.repository import faults, read_config
from serve.launcher import Settings, launch

W = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def scaled(path: Path, *, mixes: bool = False) -> Path:
    """y = (x w + table) * scale: x has rows, the table of 4 and the scalar belong to all of them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"]),
        helper.make_node("Add", ["wide", "table"], ["moved"]),
        helper.make_node("Mul", ["moved", "scale"], ["z" if mixes else "y"]),
    ]
    if mixes:
        nodes.append(helper.make_node("Softmax", ["z"], ["y"], axis=0))
    table = helper.make_tensor_value_info("table", TensorProto.FLOAT, [4])
    scale = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [])
    return graph(path, nodes, takes=("batch", 8), gives=("batch", 4), constants=[weights(8, 4)], others=[table, scale])


def expected(x: NDArray[np.float32], table: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    answer: NDArray[np.float32] = (x @ W + table) * scale
    return answer


def test_inputs_without_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(scaled(tmp_path / "scaled.onnx")), "--repository", str(tmp_path / "models")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "so max_batch_size is 0." in printed
    assert 'Input "table" of shape [4] and "scale" (a scalar) have no axis for rows' in printed
    assert "a request may hold many rows, which share table and scale: 1, 2, 3, 8, 16 rows answered as alone" in printed
    config = read_config(tmp_path / "models" / "scaled" / "config.pbtxt")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert {tensor.name: list(tensor.dims) for tensor in config.input} == {"x": [-1, 8], "table": [4], "scale": [1]}
    assert list(faults(tmp_path / "models")) == []


def test_rows_that_mix_are_not_said_to_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(scaled(tmp_path / "mixed.onnx", mixes=True)), "--repository", str(tmp_path / "models")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "have no axis for rows" in printed
    assert "a request may hold many rows" not in printed


def test_an_input_that_was_exported_for_one_row_still_gets_its_rows(tmp_path: Path) -> None:
    """Where the fixed axis can become a batch axis, every request has its own."""
    other = helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 4])
    nodes = [helper.make_node("Add", ["x", "other"], ["y"])]
    path = graph(tmp_path / "sum.onnx", nodes, takes=("batch", 4), gives=("batch", 4), others=[other])
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    assert read_config(tmp_path / "models" / "sum" / "config.pbtxt").max_batch_size == 16


def test_a_graph_of_scalars_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = graph(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], takes=(), gives=())
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 1
    assert 'input "x" is a scalar' in capsys.readouterr().err


def test_a_table_that_is_multiplied_is_no_batch(tmp_path: Path) -> None:
    """[8, 4] beside [batch, 8]: no row of it runs alone."""
    table = helper.make_tensor_value_info("table", TensorProto.FLOAT, [8, 4])
    nodes = [helper.make_node("MatMul", ["x", "table"], ["y"])]
    path = graph(tmp_path / "m.onnx", nodes, takes=("batch", 8), gives=("batch", 4), others=[table])
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    assert read_config(tmp_path / "models" / "m" / "config.pbtxt").max_batch_size == 0
    assert main([str(path), "--repository", str(tmp_path / "models"), "--name", "v", "--variable-length"]) != 0


@pytest.mark.server
def test_each_request_has_its_own_values_and_any_number_of_rows(tmp_path: Path) -> None:
    assert main([str(scaled(tmp_path / "scaled.onnx")), "--repository", str(tmp_path / "models")]) == 0
    rng = np.random.default_rng(1)
    requests = [
        {
            "x": rng.standard_normal((rows, 8)).astype(np.float32),
            "table": rng.standard_normal(4).astype(np.float32),
            "scale": np.array([rows + 0.5], dtype=np.float32),
        }
        for rows in (1, 3, 40)
    ]
    with (
        launch(Settings(models=("scaled",), repository=tmp_path / "models", arguments=PLAIN)) as server,
        Stream(server.grpc_url) as stream,
    ):
        answers = stream.send("scaled", requests)
        assert counted(server.grpc_url, "scaled", executions=3).executions == 3
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, dict), answer
        wanted = expected(request["x"], request["table"], float(request["scale"][0]))
        np.testing.assert_allclose(answer["y"].astype(np.float32), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.server
def test_an_output_without_rows_is_one_value(tmp_path: Path) -> None:
    """The sum over a whole request: Triton refuses an empty reshape without a batch axis, and takes dims [ 1 ]."""
    path = graph(tmp_path / "total.onnx", [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], gives=())
    assert main([str(path), "--batching", "none", "--repository", str(tmp_path / "models")]) == 0
    assert list(read_config(tmp_path / "models" / "total" / "config.pbtxt").output[0].dims) == [1]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with (
        launch(Settings(models=("total",), repository=tmp_path / "models", arguments=PLAIN)) as server,
        Stream(server.grpc_url) as stream,
    ):
        (answer,) = stream.send("total", [{"x": x}])
    assert isinstance(answer, dict), answer
    assert answer["y"].tolist() == [28]


def test_the_file_is_the_users(tmp_path: Path) -> None:
    """The constants of the proof are not in what is written."""
    path = scaled(tmp_path / "scaled.onnx")
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    written = load(tmp_path / "models" / "scaled" / "1" / "model.onnx")
    assert [value.name for value in written.graph.input] == [value.name for value in onnx.load(path).graph.input]
    assert [tensor.name for tensor in written.graph.initializer] == ["w"]
