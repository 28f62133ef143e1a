"""Operators of a random graph that have graphs of their own: branches and loops."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from perf.studies.memory_estimate.growing_graph import RandomGraph, Tensor
from perf.studies.memory_estimate.row_operators import binary, unary
from perf.studies.memory_estimate.zoo import FLOAT, INT64


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


def _body(nodes: Sequence[onnx.NodeProto], output: str, weights: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, FLOAT, None)], weights)
