"""A tiny encoder whose requests may have any length: it attends to the mask, and answers per item and per request."""

from pathlib import Path

import numpy as np
import onnx
from added_graphs import numbers
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4
TABLE = np.random.default_rng(5).normal(size=(32, WIDTH)).astype(np.float32)
PAD = 'parameters { key: "pad" value { string_value: "tokens[1]=0" } }\n'
MASK = 'parameters { key: "pad_mask" value { string_value: "mask=tokens[1]" } }\n'
CUT = 'parameters { key: "cut" value { string_value: "each[1]=tokens[1]" } }\n'


def expected(tokens: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
    """The answer to `tokens` [rows, length], computed row by row without padding."""
    each = TABLE[tokens] * 2
    return {"each": each, "pooled": each.mean(axis=1)}


def encoder(
    repository: Path,
    name: str = "encoder",
    *,
    backend: str = "onnxruntime_padded",
    parameters: str = PAD + MASK + CUT,
    inputs: str = 'input [ { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true } ]\n',
    max_batch_size: int = 16,
) -> Path:
    """`pooled` is the mean of the items that the mask has, and `each` has a vector for each item."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["embedded"]),
        helper.make_node("Add", ["embedded", "embedded"], ["each"]),
        helper.make_node("Cast", ["mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["each", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "middle"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["pooled"]),
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [
            helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "length"]),
        ],
        [
            helper.make_tensor_value_info("each", TensorProto.FLOAT, ["batch", "length", WIDTH]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [
            numpy_helper.from_array(TABLE, "table"),
            numbers("last", 2),
            numbers("middle", 1),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {max_batch_size}\n{inputs}'
        f'output [ {{ name: "each" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }},\n'
        f'         {{ name: "pooled" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]\n'
        f"instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: 2000000 }}\n{parameters}"
    )
    return folder
