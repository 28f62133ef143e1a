"""Builds model repositories for tests: tiny ONNX graphs and Python models with exactly one property each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        {body}
"""


def onnx_model(
    repository: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    *,
    dims: tuple[int, int],
    batch: int | str = "batch",
    initialisers: Sequence[onnx.TensorProto] = (),
    config: str = "dynamic_batching { }",
    max_batch_size: int = 8,
) -> Path:
    """A graph from `x` FP32 (batch, dims[0]) to `y` FP32 (batch, dims[1]) with its configuration."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, dims[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, dims[1]])],
        list(initialisers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = _folder(repository, name)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {max_batch_size}\n'
        f'input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {dims[0]} ] }} ]\n'
        f'output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {dims[1]} ] }} ]\n'
        f"instance_group [ {{ count: 1 }} ]\n{config}\n"
    )
    return folder


def lookup(repository: Path, name: str = "lookup") -> Path:
    """y = table[x]: an index outside 0..3 makes onnxruntime fail the run."""
    return onnx_model(
        repository,
        name,
        [
            helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["y"]),
        ],
        dims=(1, 1),
        initialisers=[numpy_helper.from_array(np.array([10, 11, 12, 13], dtype=np.float32), "table")],
    )


def mixing(repository: Path, name: str = "mixing") -> Path:
    """y = x minus the mean over the batch: a batch answers differently from its rows."""
    return onnx_model(
        repository,
        name,
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "mean"], ["y"]),
        ],
        dims=(2, 2),
    )


def python_model(repository: Path, name: str, body: str) -> Path:
    """A Python model whose `execute` is `body`, with one FP32 input `x` and one output `y` of one value."""
    folder = _folder(repository, name)
    (folder / "1" / "model.py").write_text(PYTHON_MODEL.format(body=body))
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    )
    return folder


def _folder(repository: Path, name: str) -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    return folder
