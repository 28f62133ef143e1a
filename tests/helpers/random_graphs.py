"""Random small graphs of which it is known whether their rows mix, or whether padding reaches an answer.

Each has a part that mixes or keeps, at a scale of 1e-3 to 1e4, beside channels or outputs of another scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Tensor = tuple[str, int, Sequence[str | int]]
"""Name, type and shape of an input."""

WIDTH = 4
OTHER = 0.3
"""How much of another row or of padding is added."""


@dataclass
class Graph:
    """A graph under construction: the random numbers of its seed, nodes and constants."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its first output."""
        name = f"t{len(self.nodes)}"
        outputs = [name, f"{name}_places"] if kind == "TopK" else [name]
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return name

    def constant(self, *values: float) -> str:
        """Add numbers of FP32."""
        return self._add(np.array(values, dtype=np.float32))

    def whole(self, *values: int) -> str:
        """Add whole numbers."""
        return self._add(np.array(values, dtype=np.int64))

    def weights(self, *shape: int) -> str:
        """Add random numbers."""
        return self._add((self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def ones(self, *shape: int) -> str:
        """Add ones of FP32."""
        return self._add(np.ones(shape, dtype=np.float32))

    def _add(self, values: NDArray[np.generic]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def scaled(self, tensor: str) -> str:
        """The tensor times 1e-3 to 1e4, often with an offset of that size."""
        scale = float(10 ** self.rng.uniform(-3, 4))
        tensor = self.node("Mul", tensor, self.constant(scale))
        return self.node("Add", tensor, self.constant(scale * 3)) if self.rng.random() < 0.5 else tensor

    def model(self, takes: Sequence[Tensor], gives: dict[str, int]) -> onnx.ModelProto:
        """The model, with outputs of these ranks."""
        shapes = {rank: ["batch", *(f"d{axis}" for axis in range(1, rank))] for rank in (1, 2, 3)}
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(*each) for each in takes],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[rank]) for name, rank in gives.items()],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(inferred)
        return inferred


def kept(graph: Graph, tensor: str) -> str:
    """[batch, WIDTH] through a few nodes that keep rows apart."""
    kinds: dict[str, Callable[[str], str]] = {
        "linear": lambda t: graph.node("Gemm", t, graph.weights(WIDTH, WIDTH), graph.weights(WIDTH)),
        "deep": lambda t: graph.node(
            "MatMul", graph.node("MatMul", t, graph.weights(WIDTH, 700)), graph.weights(700, WIDTH)
        ),
        "relu": lambda t: graph.node("Relu", t),
        "tanh": lambda t: graph.node("Tanh", t),
        "softmax": lambda t: graph.node("Softmax", t, axis=1),
        "centred": lambda t: graph.node("Sub", t, graph.node("ReduceMean", t, axes=[1])),
        "sorted": lambda t: graph.node("TopK", t, graph.whole(WIDTH), axis=1),
        "summed": lambda t: graph.node("CumSum", t, graph.whole(1)),
        "squared": lambda t: graph.node("Mul", t, t),
        "cancelling": lambda t: graph.node("Sub", graph.node("Add", t, graph.constant(1000)), graph.constant(1000)),
    }
    for _ in range(int(graph.rng.integers(1, 5))):
        tensor = kinds[str(graph.rng.choice(list(kinds)))](tensor)
    return tensor


def mixed(graph: Graph, tensor: str, x: str) -> tuple[str, str]:
    """The tensor with something of other rows, and how."""

    def plus(other: str) -> str:
        return graph.node("Add", tensor, graph.node("Mul", other, graph.constant(OTHER)))

    def only_if(what: str, kind: str, limit: float) -> str:
        met = graph.node(kind, graph.node("ReduceMax", graph.node("Abs", x)), graph.constant(limit))
        return graph.node("Where", met, plus(graph.node("ReduceMean", what, axes=[0])), tensor)

    kinds: dict[str, Callable[[], str]] = {
        "mean": lambda: graph.node("Sub", tensor, graph.node("ReduceMean", tensor, axes=[0])),
        "a little mean": lambda: graph.node(
            "Add", tensor, graph.node("Mul", graph.node("ReduceMean", x, axes=[0]), graph.constant(0.01))
        ),
        "maximum": lambda: plus(graph.node("ReduceMax", x, axes=[0])),
        "softmax": lambda: graph.node("Softmax", tensor, axis=0),
        "sort": lambda: graph.node("TopK", x, graph.node("Shape", x, start=0, end=1), axis=0),
        "sum so far": lambda: plus(graph.node("CumSum", x, graph.whole(0))),
        "the first row": lambda: plus(graph.node("Gather", x, graph.whole(0), axis=0)),
        "the last row": lambda: plus(graph.node("Gather", x, graph.whole(-1), axis=0)),
        "rows reversed": lambda: plus(
            graph.node("Slice", x, graph.whole(-1), graph.whole(-(2**31)), graph.whole(0), graph.whole(-1))
        ),
        "large rows only": lambda: only_if(x, "Greater", 5.0),
        "small rows only": lambda: only_if(x, "Less", 0.05),
    }
    kind = str(graph.rng.choice(list(kinds)))
    return kinds[kind](), kind


def with_rows(seed: int) -> tuple[onnx.ModelProto, str]:
    """A graph of x [batch, WIDTH], and how its rows mix; "" if they do not."""
    graph, how = Graph(np.random.default_rng(seed)), ""
    tensor = kept(graph, "x")
    if graph.rng.random() < 0.5:
        tensor, how = mixed(graph, tensor, "x")
    parts = [graph.scaled(tensor), graph.scaled(kept(graph, "x"))]
    graph.rng.shuffle(parts)
    takes: list[Tensor] = [("x", TensorProto.FLOAT, ["batch", WIDTH])]
    layout = graph.rng.integers(3)
    if layout == 0:
        return graph.model(takes, dict.fromkeys(parts, 2)), how
    if layout == 1:
        return graph.model(takes, {graph.node("Concat", *parts, axis=1): 2}), how
    stacked = graph.node("Concat", *(graph.node("Unsqueeze", part, graph.whole(1)) for part in parts), axis=1)
    return graph.model(takes, {stacked: 3}), how


def along(graph: Graph, tensor: str) -> str:
    """[batch, length] through a few nodes that keep what comes first apart from what follows."""
    kinds: dict[str, Callable[[str], str]] = {
        "linear": lambda t: graph.node("Add", graph.node("Mul", t, graph.weights(1)), graph.weights(1)),
        "relu": lambda t: graph.node("Relu", t),
        "tanh": lambda t: graph.node("Tanh", t),
        "squared": lambda t: graph.node("Mul", t, t),
        "sum so far": lambda t: graph.node("CumSum", t, graph.whole(1)),
        "cancelling": lambda t: graph.node("Sub", graph.node("Add", t, graph.constant(1000)), graph.constant(1000)),
        "look back": lambda t: graph.node(
            "Squeeze",
            graph.node("Conv", graph.node("Unsqueeze", t, graph.whole(1)), graph.weights(1, 1, 3), pads=[2, 0]),
            graph.whole(1),
        ),
    }
    for _ in range(int(graph.rng.integers(1, 4))):
        tensor = kinds[str(graph.rng.choice(list(kinds)))](tensor)
    return tensor


def leaking(graph: Graph, tensor: str) -> tuple[str, str]:
    """The tensor with something of what follows it, and how."""

    def plus(other: str) -> str:
        return graph.node("Add", tensor, graph.node("Mul", other, graph.constant(OTHER)))

    one = graph.constant(1)
    kinds: dict[str, Callable[[], str]] = {
        "mean": lambda: graph.node("Sub", tensor, graph.node("ReduceMean", "x", axes=[1])),
        "maximum": lambda: plus(graph.node("ReduceMax", graph.node("Neg", graph.node("Abs", "x")), axes=[1])),
        "softmax": lambda: graph.node("Softmax", tensor, axis=1),
        "the last": lambda: plus(graph.node("Gather", graph.node("Add", "x", one), graph.whole(-1), axis=1)),
        "sum to come": lambda: plus(graph.node("CumSum", graph.node("Add", "x", one), graph.whole(1), reverse=1)),
        "look ahead": lambda: plus(
            graph.node(
                "Squeeze",
                graph.node(
                    "Conv",
                    graph.node("Unsqueeze", graph.node("Add", "x", one), graph.whole(1)),
                    graph.ones(1, 1, 3),
                    pads=[1, 1],
                ),
                graph.whole(1),
            )
        ),
    }
    kind = str(graph.rng.choice(list(kinds)))
    return kinds[kind](), kind


def with_lengths(seed: int) -> tuple[onnx.ModelProto, str]:
    """A graph of x and mask [batch, length], and how padding reaches its answer; "" if it does not."""
    graph, how = Graph(np.random.default_rng(seed)), ""
    tensor = along(graph, "x")
    if graph.rng.random() < 0.5:
        tensor, how = leaking(graph, tensor)
    parts = [graph.scaled(tensor), graph.scaled(along(graph, "x"))]
    graph.rng.shuffle(parts)
    masked = graph.node("ReduceSum", graph.node("Mul", along(graph, "x"), "mask"), graph.whole(1), keepdims=1)
    pooled = graph.scaled(graph.node("Div", masked, graph.node("ReduceSum", "mask", graph.whole(1), keepdims=1)))
    takes: list[Tensor] = [(name, TensorProto.FLOAT, ["batch", "length"]) for name in ("x", "mask")]
    if graph.rng.random() < 0.5:
        return graph.model(takes, {**dict.fromkeys(parts, 2), pooled: 2}), how
    stacked = graph.node("Concat", *(graph.node("Unsqueeze", part, graph.whole(1)) for part in parts), axis=1)
    return graph.model(takes, {stacked: 3, pooled: 2}), how
