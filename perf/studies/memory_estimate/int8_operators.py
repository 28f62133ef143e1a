"""Operators of a random graph in int8, as onnxruntime's quantizers write them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perf.studies.memory_estimate.growing_graph import RandomGraph, Tensor
from perf.studies.memory_estimate.zoo import FLOAT

Kind = type[np.int8] | type[np.uint8]
KINDS: Mapping[str, tuple[Kind, Kind]] = {
    "u8s8": (np.uint8, np.int8),
    "u8u8": (np.uint8, np.uint8),
    "s8s8": (np.int8, np.int8),
}
"""The types of values and weights that int8 kernels take."""


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
