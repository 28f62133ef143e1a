"""Operators of a random graph on tensors of any shape, and on sequences."""

import math

import onnx

from perf.studies.memory_estimate.growing_graph import RandomGraph, Tensor
from perf.studies.memory_estimate.zoo import FLOAT, INT64

UNARY = (
    *("Abs", "Elu", "Erf", "HardSigmoid", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign"),
    "Tanh",
)


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


def einsum(graph: RandomGraph, source: Tensor) -> list[Tensor]:
    """A kernel whose memory is not known."""
    if not graph.unknown:
        return transpose(graph, source)
    letters = "abcd"[: len(source.dims) + 1]
    return graph.add("Einsum", source.name, dims=source.dims[::-1], equation=f"{letters}->a{letters[:0:-1]}")
