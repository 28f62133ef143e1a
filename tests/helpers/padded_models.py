"""A tiny encoder whose requests may have any length: it attends to the mask, and answers per item and per request."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from tiny_models import model_of

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
    values = ", ".join(str(value) for value in TABLE.ravel().tolist())
    graph = f"""g (int64[batch, length] tokens, int64[batch, length] mask)
=> (float[batch, length, {WIDTH}] each, float[batch, {WIDTH}] pooled)
<float[{len(TABLE)}, {WIDTH}] table = {{{values}}}, int64[1] last = {{2}}, int64[1] middle = {{1}}> {{
  embedded = Gather(table, tokens)
  each = Add(embedded, embedded)
  weights = Cast <to = 1> (mask)
  column = Unsqueeze(weights, last)
  kept = Mul(each, column)
  sum = ReduceSum <keepdims = 0> (kept, middle)
  count = ReduceSum <keepdims = 1> (weights, middle)
  pooled = Div(sum, count)
}}"""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    onnx.save(model_of(graph), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {max_batch_size}\n{inputs}'
        f'output [ {{ name: "each" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }},\n'
        f'         {{ name: "pooled" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]\n'
        f"instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: 2000000 }}\n{parameters}"
    )
    return folder
