"""Operators of a random graph on channels, height and width."""

import numpy as np

from perf.studies.memory_estimate.growing_graph import RandomGraph, Tensor
from perf.studies.memory_estimate.row_operators import unary


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


def _strided(size: int, stride: int) -> int:
    return -(-size // stride)
