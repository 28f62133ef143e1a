"""A random graph from a seed: convolutions, recurrent layers, int8, branches and loops, with a dynamic batch."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from perf.studies.memory_estimate.zoo import FLOAT, INT64, Builder

# Elements of a row: enough for several regions of an arena, and fast.
MOST_ITEMS = 24_000
INPUTS: Sequence[tuple[int, ...]] = ((3, 24, 24), (8, 16, 16), (16, 9, 13), (12, 32), (20, 16), (64,), (300,))
UNARY = (
    *("Abs", "Elu", "Erf", "HardSigmoid", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign"),
    "Tanh",
)
Dims = tuple[int, ...]
Kind = type[np.int8] | type[np.uint8]
KINDS: Mapping[str, tuple[Kind, Kind]] = {
    "u8s8": (np.uint8, np.int8),
    "u8u8": (np.uint8, np.uint8),
    "s8s8": (np.int8, np.int8),
}
"""The types of values and weights that int8 kernels take."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A float tensor of a graph; `dims` are those after the batch."""

    name: str
    dims: Dims


class RandomGraph:
    """Adds operators to a graph, each on tensors that are there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.net = Builder(seed)
        self.inputs = [Tensor(name=f"x{at}", dims=dims) for at, dims in enumerate(self.rng.sample(INPUTS, k=2))]
        self.tensors = list(self.inputs)
        # Most graphs have only kernels that are known to the byte.
        self.flows, self.unknown = self.rng.random() < 0.25, self.rng.random() < 0.1

    def grow(self, operators: int) -> None:
        """Add at least so many operators."""
        while len(self.net.nodes) < operators:
            # Mostly a new tensor goes on, so that the graph is deep.
            source = self.rng.choice(self.tensors[-4:] if self.rng.random() < 0.8 else self.tensors)
            made = self.rng.choice(OPERATORS[len(source.dims)])(self, source)
            self.tensors += [tensor for tensor in made if 0 < math.prod(tensor.dims) <= MOST_ITEMS]

    def model(self) -> onnx.ModelProto:
        """The graph; its outputs are the last tensor and another one."""
        outputs = {"y": self.tensors[-1].name, "z": self.rng.choice(self.tensors).name}
        shapes: dict[str, Sequence[int | str]] = {tensor.name: ["batch", *tensor.dims] for tensor in self.inputs}
        return self.net.model("random", shapes, outputs)

    def add(self, kind: str, *inputs: str, dims: Dims, **attributes: Any) -> list[Tensor]:
        """Add a node with one output of these dimensions."""
        return [Tensor(name=self.net.node(kind, *inputs, **attributes), dims=dims)]

    def twin(self, source: Tensor) -> Tensor:
        """Another tensor of the same shape; the same one if there is none."""
        return self.rng.choice([tensor for tensor in self.tensors if tensor.dims == source.dims])


def unary(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """An operator of one input that keeps the shape."""
    kind = graph.rng.choice(UNARY)
    return graph.add(kind, source.name, dims=source.dims)


def binary(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Two tensors of a shape, or one and a constant."""
    other = graph.twin(source).name if graph.rng.random() < 0.7 else graph.net.weight(source.dims[-1])
    return graph.add(graph.rng.choice(["Add", "Mul", "Sub"]), source.name, other, dims=source.dims)


def variadic(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Three tensors of a shape."""
    names = (source.name, graph.twin(source).name, graph.twin(source).name)
    return graph.add(graph.rng.choice(["Max", "Mean", "Min", "Sum"]), *names, dims=source.dims)


def where(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A choice by element."""
    other = graph.twin(source).name
    return graph.add("Where", graph.net.node("Less", source.name, other), source.name, other, dims=source.dims)


def softmax(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Softmax over any axis but the batch."""
    axis = graph.rng.randint(1, len(source.dims))
    return graph.add(graph.rng.choice(["Softmax", "LogSoftmax"]), source.name, dims=source.dims, axis=axis)


def concat(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Two tensors, joined."""
    dims = (2 * source.dims[0], *source.dims[1:])
    return graph.add("Concat", source.name, graph.twin(source).name, dims=dims, axis=1)


def split(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Two halves, of which one may never be read."""
    if source.dims[0] % 2:
        return unary(graph, source)
    dims = (source.dims[0] // 2, *source.dims[1:])
    first = graph.net.node("Split", source.name, outputs=2, axis=1)
    halves = [Tensor(name=first, dims=dims), Tensor(name=f"{first}_1", dims=dims)]
    return graph.rng.sample(halves, k=graph.rng.randint(1, 2))


def top(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """The largest elements; nothing reads their indices."""
    count = max(1, source.dims[-1] // 2)
    name = graph.net.node("TopK", source.name, graph.net.numbers(count), outputs=2, axis=-1)
    return [Tensor(name=name, dims=(*source.dims[:-1], count))]


def transpose(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """All dimensions but the batch, in another order."""
    order = graph.rng.sample(range(1, len(source.dims) + 1), k=len(source.dims))
    dims = tuple(source.dims[at - 1] for at in order)
    return graph.add("Transpose", source.name, dims=dims, perm=[0, *order])


def flatten(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A row of all elements."""
    return graph.add("Flatten", source.name, dims=(math.prod(source.dims),))


def reshape(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """All elements in two dimensions; the target is a constant, or computed when the graph runs."""
    dims = (source.dims[0], math.prod(source.dims[1:]))
    if graph.rng.random() < 0.7:
        return graph.add("Reshape", source.name, graph.net.numbers(0, *dims), dims=dims)
    batch = graph.net.node("Gather", graph.net.node("Shape", source.name), graph.net.numbers(0), axis=0)
    target = graph.net.node("Concat", batch, graph.net.numbers(*dims), axis=0)
    return graph.add("Reshape", source.name, target, dims=dims)


def reduce(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Over the last axis."""
    kind = graph.rng.choice(["ReduceMean", "ReduceMax", "ReduceL2"])
    return graph.add(kind, source.name, dims=(*source.dims[:-1], 1), axes=[-1])


def cast(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """To another type and back."""
    kind = graph.rng.choice([onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32, INT64])
    return graph.add("Cast", graph.net.node("Cast", source.name, to=kind), dims=source.dims, to=FLOAT)


def dense(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A product with a constant matrix and a bias."""
    inside, outside = source.dims[-1], graph.rng.choice([4, 10, 33, 64])
    return [Tensor(name=graph.net.dense(source.name, inside, outside), dims=(*source.dims[:-1], outside))]


def gemm(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A linear layer."""
    outside = graph.rng.choice([1, 10, 48, 200])
    weight = graph.net.weight(outside, source.dims[0])
    return graph.add("Gemm", source.name, weight, graph.net.weight(outside), dims=(outside,), transB=1)


def integer_dense(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """What `quantize_dynamic` writes: the input in int8 by its range, times int8 weights."""
    net, inside, outside = graph.net, source.dims[-1], graph.rng.choice([8, 30])
    kinds: Sequence[Kind] = (np.int8, np.uint8)
    kind = graph.rng.choice(kinds)
    name = net.node("DynamicQuantizeLinear", source.name, outputs=3)
    weight = net.constant(net.rng.integers(0, 90, (inside, outside)).astype(kind))
    product = net.node("MatMulInteger", name, weight, f"{name}_2", net.constant(kind(0)))
    scale = net.node("Mul", f"{name}_1", net.constant(np.float32(0.01)))
    return graph.add("Mul", net.node("Cast", product, to=FLOAT), scale, dims=(*source.dims[:-1], outside))


def quantized(graph: RandomGraph, name: str, kind: Kind) -> str:
    """QuantizeLinear and DequantizeLinear around a tensor."""
    scale, zero = graph.net.constant(np.float32(0.02)), graph.net.constant(kind(3))
    return graph.net.node("DequantizeLinear", graph.net.node("QuantizeLinear", name, scale, zero), scale, zero)


def quantized_weight(graph: RandomGraph, kind: Kind, *shape: int) -> str:
    """A constant in int8."""
    net = graph.net
    values = net.constant(net.rng.integers(0, 90, shape).astype(kind))
    return net.node("DequantizeLinear", values, net.constant(np.float32(0.01)), net.constant(kind(0)))


def quantized_conv(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A convolution between QuantizeLinear and DequantizeLinear, as `quantize_static` writes it."""
    kind, weights = graph.rng.choice(list(KINDS.values()))
    channels, side = source.dims[0], graph.rng.choice([1, 3])
    group = channels if graph.rng.random() < 0.3 else 1
    filters = channels if group > 1 else graph.rng.choice([8, 16, 20])
    weight = quantized_weight(graph, weights, filters, channels // group, side, side)
    pads: dict[str, Any] = {"pads": [side // 2] * 4, "group": group}
    made = graph.net.node("Conv", quantized(graph, source.name, kind), weight, **pads)
    return [Tensor(name=quantized(graph, made, kind), dims=(filters, *source.dims[1:]))]


def quantized_dense(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A product between QuantizeLinear and DequantizeLinear."""
    kinds: Sequence[Kind] = (np.uint8, np.int8)
    kind, outside = graph.rng.choice(kinds), graph.rng.choice([8, 30])
    weight = quantized_weight(graph, np.int8, source.dims[-1], outside)
    made = graph.net.node("MatMul", quantized(graph, source.name, kind), weight)
    return [Tensor(name=quantized(graph, made, kind), dims=(*source.dims[:-1], outside))]


def conv(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A convolution, mostly of 3 x 3."""
    rng, channels = graph.rng, source.dims[0]
    side, stride = rng.choice([1, 3, 3, 5]), rng.choice([1, 1, 2])
    group = channels if rng.random() < 0.25 else 1
    filters = channels * rng.choice([1, 2]) if group > 1 else rng.choice([4, 8, 16, 31])
    name = graph.net.conv(source.name, channels, filters, side, stride=stride, group=group)
    return [Tensor(name=name, dims=(filters, *(_strided(size, stride) for size in source.dims[1:])))]


def transposed_conv(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Twice the height and width."""
    filters = graph.rng.choice([2, 6])
    weight = graph.net.weight(source.dims[0], filters, 2, 2)
    dims = (filters, *(2 * size for size in source.dims[1:]))
    return graph.add("ConvTranspose", source.name, weight, dims=dims, strides=[2, 2])


def pool(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Half the height and width."""
    if min(source.dims[1:]) < 2:
        return unary(graph, source)
    dims = (source.dims[0], *(size // 2 for size in source.dims[1:]))
    kind = graph.rng.choice(["AveragePool", "MaxPool"])
    return graph.add(kind, source.name, dims=dims, kernel_shape=[2, 2], strides=[2, 2])


def global_pool(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """One value per channel."""
    return graph.add("GlobalAveragePool", source.name, dims=(source.dims[0], 1, 1))


def normalised(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """By channel, or by neighbouring channels."""
    weights = (graph.net.weight(source.dims[0]), graph.net.weight(source.dims[0]))
    if graph.rng.random() < 0.5:
        return graph.add("InstanceNormalization", source.name, *weights, dims=source.dims)
    return graph.add("LRN", source.name, dims=source.dims, size=3)


def resize(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Twice the height and width."""
    scales = graph.net.constant(np.array([1, 1, 2, 2], np.float32))
    dims = (source.dims[0], *(2 * size for size in source.dims[1:]))
    return graph.add("Resize", source.name, "", scales, dims=dims, mode=graph.rng.choice(["linear", "nearest"]))


def layer_norm(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """Over the last axis."""
    weights = (graph.net.weight(source.dims[-1]), graph.net.weight(source.dims[-1]))
    return graph.add("LayerNormalization", source.name, *weights, dims=source.dims, axis=-1)


def recurrent(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """An LSTM or GRU over the second axis, whose last states may never be read."""
    net, (length, width), hidden = graph.net, source.dims, graph.rng.choice([5, 16])
    kind, gates = graph.rng.choice([("LSTM", 4), ("GRU", 3)])
    sides = graph.rng.choice([1, 2])
    name = net.node(
        kind,
        net.node("Transpose", source.name, perm=[1, 0, 2]),
        *(net.weight(sides, gates * hidden, size) for size in (width, hidden)),
        net.weight(sides, 2 * gates * hidden),
        outputs=graph.rng.choice([1, 2, gates - 1]),
        hidden_size=hidden,
        direction="bidirectional" if sides == 2 else "forward",
    )
    return graph.add("Transpose", name, dims=(length, sides, hidden), perm=[2, 0, 1, 3])


def attention(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """The products of all pairs of steps."""
    length, width = source.dims
    keys = graph.net.node("Transpose", graph.twin(source).name, perm=[0, 2, 1])
    scores = graph.net.node("Softmax", graph.net.node("MatMul", source.name, keys), axis=-1)
    return graph.add("MatMul", scores, source.name, dims=(length, width))


def branch(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """An If by a value of the tensor: one branch has a constant matrix, the other one operator."""
    if not graph.flows:
        return binary(graph, source)
    net, width, wide = graph.net, source.dims[-1], graph.rng.choice([8, 64])
    largest = net.node("ReduceMax", source.name, keepdims=0)
    condition = net.node("Greater", largest, net.constant(np.float32(graph.rng.choice([-1e9, 1e9]))))
    tag = f"b{len(net.nodes)}"
    weights = [
        numpy_helper.from_array((net.rng.standard_normal(shape) / 8).astype(np.float32), f"{tag}w{at}")
        for at, shape in enumerate(((width, wide), (wide, width)))
    ]
    long = [
        helper.make_node("MatMul", [source.name, f"{tag}w0"], [f"{tag}p"]),
        helper.make_node("Relu", [f"{tag}p"], [f"{tag}q"]),
        helper.make_node("MatMul", [f"{tag}q", f"{tag}w1"], [f"{tag}t"]),
    ]
    return graph.add(
        "If",
        condition,
        dims=source.dims,
        then_branch=_body(long, f"{tag}t", weights),
        else_branch=_body([helper.make_node("Neg", [source.name], [f"{tag}e"])], f"{tag}e"),
    )


def loop(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A Loop of a constant number of runs that changes a tensor, and may collect copies of it."""
    if not graph.flows:
        return unary(graph, source)
    net, trips = graph.net, graph.rng.choice([1, 3])
    tag, collects = f"l{len(net.nodes)}", graph.rng.random() < 0.5
    nodes = [
        helper.make_node("Identity", [f"{tag}c"], [f"{tag}k"]),
        helper.make_node("Tanh", [f"{tag}v"], [f"{tag}a"]),
        helper.make_node("Add", [f"{tag}a", source.name], [f"{tag}o"]),
        *([helper.make_node("Neg", [f"{tag}o"], [f"{tag}s"])] if collects else []),
    ]
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        tag,
        [
            value(f"{tag}i", INT64, []),
            value(f"{tag}c", onnx.TensorProto.BOOL, []),
            value(f"{tag}v", FLOAT, ["batch", *source.dims]),
        ],
        [
            value(f"{tag}k", onnx.TensorProto.BOOL, []),
            value(f"{tag}o", FLOAT, ["batch", *source.dims]),
            *([value(f"{tag}s", FLOAT, ["batch", *source.dims])] if collects else []),
        ],
    )
    count = net.constant(np.array(trips, np.int64))
    name = net.node("Loop", count, "", source.name, outputs=2 if collects else 1, body=body)
    return [Tensor(name=name, dims=source.dims)]


def einsum(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A kernel whose memory is not known."""
    if not graph.unknown:
        return transpose(graph, source)
    letters = "abcd"[: len(source.dims) + 1]
    return graph.add("Einsum", source.name, dims=source.dims[::-1], equation=f"{letters}->a{letters[:0:-1]}")


def _body(nodes: Sequence[onnx.NodeProto], output: str, weights: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, FLOAT, None)], weights)


def _strided(size: int, stride: int) -> int:
    return -(-size // stride)


Operator = Callable[[RandomGraph, Tensor], list[Tensor]]
_ANY: Sequence[Operator] = (
    *(unary, unary, unary, binary, binary, variadic, where, softmax, concat, split, top, flatten, reduce, cast),
    *(branch, loop),
)
_WIDE: Sequence[Operator] = (*_ANY, transpose, reshape, dense, integer_dense, quantized_dense)
_IMAGE: Sequence[Operator] = (conv, conv, conv, pool, global_pool, normalised, resize, transposed_conv, quantized_conv)
OPERATORS: Mapping[int, Sequence[Operator]] = {
    1: (*_ANY, gemm, gemm, integer_dense),
    2: (*_WIDE, layer_norm, layer_norm, recurrent, recurrent, attention, einsum),
    3: (*_WIDE, *_IMAGE, *_IMAGE),
}
"""The operators by the number of dimensions after the batch."""


def random_graph(seed: int, operators: int = 30) -> onnx.ModelProto:
    """A model of at least so many operators; the same for the same seed."""
    graph = RandomGraph(seed)
    graph.grow(operators)
    return graph.model()
