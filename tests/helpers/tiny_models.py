"""Builds model repositories for tests: tiny ONNX graphs and Python models with exactly one property each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
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
    folder = _folder(repository, name)
    onnx.save(model_of(graph), folder / "1" / "model.onnx")
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


KINDS = {
    "COUNT": "BATCH_ELEMENT_COUNT",
    "ENDS": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "STARTS": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "LONGEST": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "ITEMS": "BATCH_ITEM_SHAPE",
    "ITEMS_FLAT": "BATCH_ITEM_SHAPE_FLATTEN",
}
"""Every kind of batch input, by the name of the tensor in `ragged_echo`."""


def ragged_echo(repository: Path, name: str, *, data_type: str = "INT32", dims: str = "-1", rows: int = 16) -> Path:
    """A ragged input X and every batch input, each of which comes back whole in every row of the output SEEN_<name>.

    The graph gets X flat and gives DOUBLE = 2 X, scattered with X's shapes, and PAIRS (X, -X), scattered with one more
    axis. Of LONGEST only the size comes back. A batch runs as soon as it has exactly `rows` rows.
    """
    element = {"INT32": "int32", "FP32": "float"}[data_type]
    nodes, inputs, outputs = [], ["float[elements] X"], ["float[elements] DOUBLE", "float[elements, 2] PAIRS"]
    for tensor in KINDS:
        inputs.append(f"{element}[{tensor}{', rank' if tensor == 'ITEMS' else ''}] {tensor}")
        outputs.append(f"{'int64' if tensor == 'LONGEST' else element}[n, n_{tensor}] SEEN_{tensor}")
        nodes.append(f"{tensor}_row = Reshape({'longest' if tensor == 'LONGEST' else tensor}, flat)")
        nodes.append(f"SEEN_{tensor} = Expand({tensor}_row, rows_by_one)")
    graph = f"""g ({", ".join(inputs)}) => ({", ".join(outputs)})
<int64[1] one = {{1}}, int64[1] last = {{1}}, int64[2] flat = {{1, -1}}> {{
  DOUBLE = Add(X, X)
  NEGATIVE = Neg(X)
  X_column = Unsqueeze(X, last)
  NEGATIVE_column = Unsqueeze(NEGATIVE, last)
  PAIRS = Concat <axis = 1> (X_column, NEGATIVE_column)
  rows = Shape <start = 0, end = 1> (ITEMS)
  rows_by_one = Concat <axis = 0> (rows, one)
  longest = Shape(LONGEST)
  {chr(10).join(nodes)}
}}"""
    batch_inputs = "".join(
        f'batch_input [ {{ kind: {kind} target_name: "{tensor}" data_type: TYPE_{data_type} source_input: "X" }} ]\n'
        for tensor, kind in KINDS.items()
    )
    batch_outputs = "".join(
        f'batch_output [ {{ target_name: "{target}" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }} ]\n'
        for target in ("DOUBLE", "PAIRS")
    )
    seen_outputs = "".join(
        f'output [ {{ name: "SEEN_{tensor}" data_type: TYPE_{"INT64" if tensor == "LONGEST" else data_type} '
        "dims: [ -1 ] } ]\n"
        for tensor in KINDS
    )
    return save(
        repository,
        name,
        graph,
        f"max_batch_size: {rows}\n"
        f'input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {dims} ] allow_ragged_batch: true }} ]\n'
        f'output [ {{ name: "DOUBLE" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n'
        f'output [ {{ name: "PAIRS" data_type: TYPE_FP32 dims: [ {dims}, 2 ] }} ]\n'
        f"{seen_outputs}{batch_inputs}{batch_outputs}"
        "dynamic_batching { max_queue_delay_microseconds: 5000000 }\n",
    )


def ragged_padded(
    repository: Path, name: str = "padded", *, config: str = "", rows: int = 8, guard: bool = False
) -> Path:
    """Y = (sum of the item, longest item of its run, items of its run) for each item of the ragged input X.

    The graph pads to the longest item. With `guard` an item whose first element is 7 makes onnxruntime fail the run.
    """
    guarded = """
  first = Gather(X, start)
  first_index = Cast <to = 7> (first)
  nothings = Gather(table, first_index)
  nothing_column = Unsqueeze(nothings, last)
  summed = Add(padded, nothing_column)"""
    graph = f"""g (float[elements] X, int32[requests] COUNT, int32[requests] END) => (float[requests, 3] Y)
<int32 zero = {{0}}, int32 one = {{1}}, int64[1] last = {{1}}, int64[2] halves = {{1, 1}},
 float nothing = {{0}}{", float[7] table = {0, 0, 0, 0, 0, 0, 0}" if guard else ""}> {{
  longest = ReduceMax <keepdims = 0> (COUNT)
  position = Range(zero, longest, one)
  start = Sub(END, COUNT)
  start_column = Unsqueeze(start, last)
  count_column = Unsqueeze(COUNT, last)
  inside = Less(position, count_column)
  index = Add(start_column, position)
  safe_index = Where(inside, index, zero)
  gathered = Gather(X, safe_index)
  padded = Where(inside, gathered, nothing)
  shape = Shape(padded)
  size = Cast <to = 1> (shape)
  items, padded_length = Split <axis = 0> (size, halves)
  zeros = Mul(count_column, zero)
  column = Cast <to = 1> (zeros)
  length_column = Add(column, padded_length)
  items_column = Add(column, items){guarded if guard else ""}
  sum = ReduceSum <keepdims = 1> ({"summed" if guard else "padded"}, last)
  Y = Concat <axis = 1> (sum, length_column, items_column)
}}"""
    batch_inputs = "".join(
        f'batch_input [ {{ kind: {kind} target_name: "{target}" data_type: TYPE_INT32 source_input: "X" }} ]\n'
        for target, kind in (("COUNT", KINDS["COUNT"]), ("END", KINDS["ENDS"]))
    )
    return save(
        repository,
        name,
        graph,
        f"max_batch_size: {rows}\n"
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
        f"{batch_inputs}{config or 'dynamic_batching { max_queue_delay_microseconds: 5000000 }'}\n",
    )


def parameters(**values: str) -> str:
    """`parameters` of a config.pbtxt."""
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def model_of(graph: onnx.GraphProto | str) -> onnx.ModelProto:
    """A checked model of a graph, or of one in ONNX's text format."""
    parsed = onnx.parser.parse_graph(graph) if isinstance(graph, str) else graph
    model = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def save(
    repository: Path, name: str, graph: onnx.GraphProto | str, config: str, *, backend: str = "onnxruntime"
) -> Path:
    """Write a graph and its configuration, for one instance; the config's name and backend are added."""
    folder = _folder(repository, name)
    onnx.save(model_of(graph), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "{backend}"\n{config}\ninstance_group [ {{ count: 1 }} ]\n'
    )
    return folder


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
