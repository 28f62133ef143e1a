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
    onnx_type = {"INT32": TensorProto.INT32, "FP32": TensorProto.FLOAT}[data_type]
    nodes = [
        helper.make_node("Add", ["X", "X"], ["DOUBLE"]),
        helper.make_node("Neg", ["X"], ["NEGATIVE"]),
        *(helper.make_node("Unsqueeze", [part, "last"], [f"{part}_column"]) for part in ("X", "NEGATIVE")),
        helper.make_node("Concat", ["X_column", "NEGATIVE_column"], ["PAIRS"], axis=1),
        helper.make_node("Shape", ["ITEMS"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows", "one"], ["rows_by_one"], axis=0),
        helper.make_node("Shape", ["LONGEST"], ["longest"]),
    ]
    for tensor in KINDS:
        seen = "longest" if tensor == "LONGEST" else tensor
        nodes += [
            helper.make_node("Reshape", [seen, "flat"], [f"{tensor}_row"]),
            helper.make_node("Expand", [f"{tensor}_row", "rows_by_one"], [f"SEEN_{tensor}"]),
        ]
    seen_type = {tensor: TensorProto.INT64 if tensor == "LONGEST" else onnx_type for tensor in KINDS}
    graph = helper.make_graph(
        nodes,
        name,
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, ["elements"]),
            *(
                helper.make_tensor_value_info(tensor, onnx_type, [tensor, "rank"] if tensor == "ITEMS" else [tensor])
                for tensor in KINDS
            ),
        ],
        [
            helper.make_tensor_value_info("DOUBLE", TensorProto.FLOAT, ["elements"]),
            helper.make_tensor_value_info("PAIRS", TensorProto.FLOAT, ["elements", 2]),
            *(
                helper.make_tensor_value_info(f"SEEN_{tensor}", seen_type[tensor], ["n", f"n_{tensor}"])
                for tensor in KINDS
            ),
        ],
        [
            numpy_helper.from_array(np.array([1], dtype=np.int64), "one"),
            numpy_helper.from_array(np.array([1], dtype=np.int64), "last"),
            numpy_helper.from_array(np.array([1, -1], dtype=np.int64), "flat"),
        ],
    )
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
    repository: Path, name: str = "padded", *, config: str = "", rows: int = 8, width: int = 0, guard: bool = False
) -> Path:
    """Y = (sum of the item, longest item of its run, items of its run) for each item of the ragged input X.

    The graph pads to the longest item; with a `width` it also multiplies every padded element with a matrix of that
    width, so that padding costs time. With `guard` an item whose first element is 7 makes onnxruntime fail the run.
    """
    nodes = [
        helper.make_node("ReduceMax", ["COUNT"], ["longest"], keepdims=0),
        helper.make_node("Range", ["zero", "longest", "one"], ["position"]),
        helper.make_node("Sub", ["END", "COUNT"], ["start"]),
        helper.make_node("Unsqueeze", ["start", "last"], ["start_column"]),
        helper.make_node("Unsqueeze", ["COUNT", "last"], ["count_column"]),
        helper.make_node("Less", ["position", "count_column"], ["inside"]),
        helper.make_node("Add", ["start_column", "position"], ["index"]),
        helper.make_node("Where", ["inside", "index", "zero"], ["safe_index"]),
        helper.make_node("Gather", ["X", "safe_index"], ["gathered"]),
        helper.make_node("Where", ["inside", "gathered", "nothing"], ["padded"]),
        helper.make_node("Shape", ["padded"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["size"], to=TensorProto.FLOAT),
        helper.make_node("Split", ["size", "halves"], ["items", "padded_length"], axis=0),
        helper.make_node("Mul", ["count_column", "zero"], ["zeros"]),
        helper.make_node("Cast", ["zeros"], ["column"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["column", "padded_length"], ["length_column"]),
        helper.make_node("Add", ["column", "items"], ["items_column"]),
        helper.make_node("Concat", ["sum", "length_column", "items_column"], ["Y"], axis=1),
    ]
    summed = "padded"
    initialisers = [
        numpy_helper.from_array(np.array(0, dtype=np.int32), "zero"),
        numpy_helper.from_array(np.array(1, dtype=np.int32), "one"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "last"),
        numpy_helper.from_array(np.array([1, 1], dtype=np.int64), "halves"),
        numpy_helper.from_array(np.array(0, dtype=np.float32), "nothing"),
    ]
    if width:
        # Every element becomes a row of the identity's scale, so the sum stays what it is.
        matrices = {"up": np.full((1, width), 1 / width), "mix": np.eye(width), "down": np.ones((width, 1))}
        for matrix, value in matrices.items():
            initialisers.append(numpy_helper.from_array(value.astype(np.float32), matrix))
        initialisers.append(numpy_helper.from_array(np.array([2], dtype=np.int64), "deep"))
        nodes[-1:-1] = [
            helper.make_node("Unsqueeze", ["padded", "deep"], ["elements"]),
            helper.make_node("MatMul", ["elements", "up"], ["wide"]),
            helper.make_node("MatMul", ["wide", "mix"], ["mixed"]),
            helper.make_node("MatMul", ["mixed", "down"], ["narrow"]),
            helper.make_node("Squeeze", ["narrow", "deep"], ["worked"]),
        ]
        summed = "worked"
    if guard:
        initialisers.append(numpy_helper.from_array(np.zeros(7, dtype=np.float32), "table"))
        nodes[-1:-1] = [
            helper.make_node("Gather", ["X", "start"], ["first"]),
            helper.make_node("Cast", ["first"], ["first_index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "first_index"], ["nothings"]),
            helper.make_node("Unsqueeze", ["nothings", "last"], ["nothing_column"]),
            helper.make_node("Add", [summed, "nothing_column"], ["guarded"]),
        ]
        summed = "guarded"
    nodes.insert(-1, helper.make_node("ReduceSum", [summed, "last"], ["sum"], keepdims=1))
    graph = helper.make_graph(
        nodes,
        name,
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, ["elements"]),
            helper.make_tensor_value_info("COUNT", TensorProto.INT32, ["requests"]),
            helper.make_tensor_value_info("END", TensorProto.INT32, ["requests"]),
        ],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["requests", 3])],
        initialisers,
    )
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


def save(repository: Path, name: str, graph: onnx.GraphProto, config: str, *, backend: str = "onnxruntime") -> Path:
    """Write a checked graph and its configuration, for one instance; the config's name and backend are added."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = _folder(repository, name)
    onnx.save(model, folder / "1" / "model.onnx")
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
