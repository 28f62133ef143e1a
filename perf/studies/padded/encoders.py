"""ONNX encoders that take [batch, length] tokens and a mask, as `torch.onnx.export` writes them, with random weights.

`bert` has BERT's layers, 4 of them and 256 wide. `fixed` reads a large matrix in each execution, which costs the same
for any number of rows. `blind` has a size that a seed draws. The answer is the mean of the last layer over own tokens.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 1000
# Columns of the matrix that every execution of `fixed` reads: 64 MiB.
COLUMNS = 65_536
# How the axes of queries, keys and values are turned: rows, heads, tokens, columns.
ORDERS = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}


class TransformerGraph:
    """Nodes and weights under construction; `width` columns a token, of which each of the `heads` sees its share.

    `added` is a tensor that is added to the scores of all tokens for all, "" for none.
    """

    added = ""

    def __init__(self, rng: np.random.Generator, width: int, heads: int) -> None:
        self._rng, self.width = rng, width
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.constant("split", np.array([0, 0, heads, width // heads]))
        self.constant("join", np.array([0, 0, width]))
        self.constant("scale", np.array((width / heads) ** -0.5, dtype=np.float32))
        self.constant("ones", np.ones(width, dtype=np.float32))

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        """Add a constant; returns its name."""
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node; returns its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def dense(self, name: str, x: str, takes: int, gives: int) -> str:
        """Multiply by a random matrix."""
        weights = self._rng.normal(0, takes**-0.5, (takes, gives)).astype(np.float32)
        return self.node("MatMul", [x, self.constant(f"{name}.w", weights)], f"{name}.y")

    def layer(self, name: str, x: str) -> str:
        """Attention and a hidden layer four times as wide, each added and normalised."""
        x = self.normalised(f"{name}.n1", self.node("Add", [x, self._attention(name, x)], f"{name}.a1"))
        return self.normalised(f"{name}.n2", self.node("Add", [x, self._wide(name, x)], f"{name}.a2"))

    def normalised(self, name: str, x: str) -> str:
        """Give each token mean 0 and variance 1."""
        return self.node("LayerNormalization", [x, "ones"], name)

    def _attention(self, name: str, x: str) -> str:
        query, key, value = (self._turned(f"{name}.{part}", x, order) for part, order in ORDERS.items())
        scores = self.node("Mul", [self.node("MatMul", [query, key], f"{name}.qk"), "scale"], f"{name}.s")
        if self.added:
            scores = self.node("Add", [scores, self.added], f"{name}.m")
        mixed = self.node("MatMul", [self.node("Softmax", [scores], f"{name}.p", axis=-1), value], f"{name}.pv")
        turned = self.node("Transpose", [mixed], f"{name}.pt", perm=[0, 2, 1, 3])
        return self.dense(f"{name}.o", self.node("Reshape", [turned, "join"], f"{name}.j"), self.width, self.width)

    def _wide(self, name: str, x: str) -> str:
        hidden = self.node("Relu", [self.dense(f"{name}.up", x, self.width, 4 * self.width)], f"{name}.relu")
        return self.dense(f"{name}.down", hidden, 4 * self.width, self.width)

    def _turned(self, name: str, x: str, order: list[int]) -> str:
        split = self.node("Reshape", [self.dense(name, x, self.width, self.width), "split"], f"{name}.r")
        return self.node("Transpose", [split], f"{name}.t", perm=order)


class Encoder(TransformerGraph):
    """An encoder of `tokens` under construction, whose `mask` is 1 at own tokens; `x` are the tokens' vectors."""

    def __init__(self, rng: np.random.Generator, width: int, heads: int) -> None:
        super().__init__(rng, width, heads)
        self.constant("middle", np.array([1]))
        self.constant("last", np.array([2]))
        self.constant("heads", np.array([1, 2]))
        self.constant("one", np.array(1, dtype=np.float32))
        self.constant("far", np.array(-1e9, dtype=np.float32))
        self.constant("table", rng.normal(0, 1, (VOCABULARY, width)).astype(np.float32))
        self.node("Cast", ["mask"], "own", to=TensorProto.FLOAT)
        self.node("Sub", ["one", "own"], "beyond")
        self.node("Mul", [self.node("Unsqueeze", ["beyond", "heads"], "apart"), "far"], "hidden_scores")
        self.node("Gather", ["table", "tokens"], "x")
        self.added = "hidden_scores"

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with a name; returns its output."""
        return super().node(kind, inputs, output, name=f"/{output}", **attributes)

    def pooled(self, x: str, output: str) -> str:
        """The mean over own tokens."""
        kept = self.node("Mul", [x, self.node("Unsqueeze", ["own", "last"], "column")], "kept")
        total = self.node("ReduceSum", [kept, "middle"], "total", keepdims=0)
        count = self.node("ReduceSum", ["own", "middle"], "count", keepdims=1)
        return self.node("Div", [total, count], output)


def _layers(rng: np.random.Generator, layers: int, width: int, heads: int) -> Encoder:
    encoder, last = Encoder(rng, width, heads), "x"
    for number in range(layers):
        last = encoder.layer(f"l{number}", last)
    encoder.pooled(last, "y")
    return encoder


def bert(rng: np.random.Generator) -> Encoder:
    """4 layers, 256 wide."""
    return _layers(rng, 4, 256, 4)


def blind(rng: np.random.Generator) -> Encoder:
    """A size that the seed draws."""
    return _layers(rng, int(rng.integers(1, 5)), int(rng.choice([64, 128, 192, 320])), int(rng.choice([2, 4])))


def fixed(rng: np.random.Generator) -> Encoder:
    """The mean of the tokens' vectors, times a large matrix, of which the maximum is taken."""
    encoder = Encoder(rng, 256, 4)
    encoder.pooled("x", "mean")
    encoder.node("ReduceMax", [encoder.dense("read", "mean", 256, COLUMNS)], "y", axes=[1], keepdims=1)
    return encoder


KINDS: Mapping[str, Callable[[np.random.Generator], Encoder]] = {"bert": bert, "fixed": fixed, "blind": blind}


def write(path: Path, kind: str, seed: int) -> Path:
    """Write the ONNX file of a kind, as the seed draws it."""
    encoder = KINDS[kind](np.random.default_rng([seed, list(KINDS).index(kind)]))
    graph = helper.make_graph(
        encoder.nodes,
        kind,
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("tokens", "mask")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1 if kind == "fixed" else encoder.width])],
        encoder.weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
