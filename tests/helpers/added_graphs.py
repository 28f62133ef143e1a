"""ONNX files and torch modules to add to a repository, each with one property of its batch axis."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.add.model_source import read
from export.graph.batched import Batched, ProofSettings, batched

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]


def tried(path: Path, **changes: object) -> Batched:
    """The proof of a file, with other settings where they are named."""
    settings = ProofSettings(**({"largest": 16, "ranges": {}, "samples": None, "tolerance": None} | changes))  # type: ignore[arg-type]
    return batched(read(str(path)), settings)


def weights(*shape: int, seed: int = 0) -> onnx.TensorProto:
    """A constant "w" of random values."""
    return numpy_helper.from_array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), "w")


def numbers(name: str, *values: int) -> onnx.TensorProto:
    """A constant of whole numbers, as shapes and axes are."""
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    *,
    takes: Shape = ("batch", 4),
    gives: Shape = ("batch", 3),
    constants: Sequence[onnx.TensorProto] = (),
    takes_type: int = FLOAT,
    others: Sequence[onnx.ValueInfoProto] = (),
) -> Path:
    """A file with the input `x`, the output `y` and the nodes between them."""
    made = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", takes_type, takes), *others],
        [helper.make_tensor_value_info("y", FLOAT, gives)],
        list(constants),
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def linear(path: Path, *, rows: int | str = "batch") -> Path:
    """y = x w: rows do not reach each other."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return graph(path, nodes, takes=(rows, 4), gives=(rows, 3), constants=[weights(4, 3)])


def texts(path: Path) -> Path:
    """y = the mean of the embeddings of `tokens` (a table of 20 rows) where `mask` is 1."""
    nodes = [
        helper.make_node("Gather", ["w", "tokens"], ["rows"]),
        helper.make_node("Cast", ["mask"], ["weight"], to=FLOAT),
        helper.make_node("Unsqueeze", ["weight", "last"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["y"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(name, INT64, ["batch", "length"]) for name in ("tokens", "mask")]
    made = helper.make_graph(
        nodes,
        "texts",
        inputs,
        [helper.make_tensor_value_info("y", FLOAT, ["batch", 3])],
        [weights(20, 3), numbers("last", -1), numbers("middle", 1)],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def scaled(path: Path, *, mixes: bool = False) -> Path:
    """y = (x w + table) * scale: x has rows, the table of 4 and the scalar belong to all of them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"]),
        helper.make_node("Add", ["wide", "table"], ["moved"]),
        helper.make_node("Mul", ["moved", "scale"], ["z" if mixes else "y"]),
    ]
    if mixes:
        nodes.append(helper.make_node("Softmax", ["z"], ["y"], axis=0))
    table = helper.make_tensor_value_info("table", FLOAT, [4])
    scale = helper.make_tensor_value_info("scale", FLOAT, [])
    return graph(path, nodes, takes=("batch", 8), gives=("batch", 4), constants=[weights(8, 4)], others=[table, scale])


def mixing(path: Path, kind: str) -> Path:
    """A graph in which rows reach each other, by the operator that makes them; its node is "culprit"."""
    node, name = helper.make_node, "culprit"
    states = (["x", "one", "zero", "zero", "one"], ["y", "new_mean", "new_var"])
    made = {
        "ReduceMean": [
            node("Relu", ["x"], ["r"]),
            node("ReduceMean", ["r"], ["m"], axes=[0], name=name),
            node("Sub", ["r", "m"], ["y"]),
        ],
        "Softmax": [node("Softmax", ["x"], ["y"], axis=0, name=name)],
        "CumSum": [node("CumSum", ["x", "index"], ["y"], name=name)],
        "MatMul": [
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node("MatMul", ["x", "t"], ["s"], name=name),
            node("MatMul", ["s", "x"], ["y"]),
        ],
        "BatchNormalization": [node("BatchNormalization", *states, training_mode=1, name=name)],
        "DynamicQuantizeLinear": [
            node("DynamicQuantizeLinear", ["x"], ["q", "scale", "point"], name=name),
            node("DequantizeLinear", ["q", "scale", "point"], ["y"]),
        ],
        "Gather": [node("Gather", ["x", "index"], ["first"], axis=0, name=name), node("Add", ["x", "first"], ["y"])],
        "RandomNormalLike": [node("RandomNormalLike", ["x"], ["n"], name=name), node("Add", ["x", "n"], ["y"])],
    }
    fours = {"one": np.ones(4, dtype=np.float32), "zero": np.zeros(4, dtype=np.float32)}
    constants = [numpy_helper.from_array(array, constant) for constant, array in fours.items()]
    constants.append(numpy_helper.from_array(np.array(0, dtype=np.int64), "index"))
    used = {tensor for each in made[kind] for tensor in each.input}
    own = [constant for constant in constants if constant.name in used]
    return graph(path, made[kind], gives=("batch", 4), constants=own)
