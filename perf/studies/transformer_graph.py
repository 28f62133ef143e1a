"""The ONNX graph of a transformer with random weights, for models that an experiment makes from a seed."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

# How the axes of queries, keys and values are turned: rows, heads, tokens, columns.
ORDERS = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}


class TransformerGraph:
    """Nodes and weights under construction; `width` columns a token, of which each of the `heads` sees its share."""

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

    def normalised(self, name: str, x: str) -> str:
        """Give each token mean 0 and variance 1."""
        return self.node("LayerNormalization", [x, "ones"], name)

    def attention(self, name: str, x: str, *, added: str = "") -> str:
        """Attention of all tokens to all; `added` is a tensor to add to its scores."""
        query, key, value = (self._turned(f"{name}.{part}", x, order) for part, order in ORDERS.items())
        scores = self.node("Mul", [self.node("MatMul", [query, key], f"{name}.qk"), "scale"], f"{name}.s")
        if added:
            scores = self.node("Add", [scores, added], f"{name}.m")
        mixed = self.node("MatMul", [self.node("Softmax", [scores], f"{name}.p", axis=-1), value], f"{name}.pv")
        turned = self.node("Transpose", [mixed], f"{name}.pt", perm=[0, 2, 1, 3])
        return self.dense(f"{name}.o", self.node("Reshape", [turned, "join"], f"{name}.j"), self.width, self.width)

    def wide(self, name: str, x: str) -> str:
        """A hidden layer four times as wide."""
        hidden = self.node("Relu", [self.dense(f"{name}.up", x, self.width, 4 * self.width)], f"{name}.relu")
        return self.dense(f"{name}.down", hidden, 4 * self.width, self.width)

    def _turned(self, name: str, x: str, order: list[int]) -> str:
        split = self.node("Reshape", [self.dense(name, x, self.width, self.width), "split"], f"{name}.r")
        return self.node("Transpose", [split], f"{name}.t", perm=order)
