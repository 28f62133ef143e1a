"""ONNX encoders that take [batch, length] tokens and a mask, as `torch.onnx.export` writes them, with random weights.

`bert` has BERT's layers, 4 of them and 256 wide. `fixed` reads a large matrix in each execution, which costs the same
for any number of rows. `blind` has a size that a seed draws. The answer is the mean of the last layer over own tokens.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from perf.studies.transformer_graph import TransformerGraph

VOCABULARY = 1000
# Columns of the matrix that every execution of `fixed` reads: 64 MiB.
COLUMNS = 65_536


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

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with a name; returns its output."""
        return super().node(kind, inputs, output, name=f"/{output}", **attributes)

    def layer(self, name: str, x: str) -> str:
        """Attention over own tokens, and a wide layer, each added and normalised."""
        attended = self.attention(name, x, added="hidden_scores")
        x = self.normalised(f"{name}.n1", self.node("Add", [x, attended], f"{name}.a1"))
        return self.normalised(f"{name}.n2", self.node("Add", [x, self.wide(name, x)], f"{name}.a2"))

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
