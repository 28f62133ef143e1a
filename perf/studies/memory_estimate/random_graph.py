"""A random graph from a seed: convolutions, recurrent layers, int8, branches and loops, with a dynamic batch."""

from collections.abc import Mapping, Sequence

import onnx

from perf.studies.memory_estimate.flow_operators import branch, loop
from perf.studies.memory_estimate.growing_graph import Operator, RandomGraph
from perf.studies.memory_estimate.image_operators import conv, global_pool, normalised, pool, resize, transposed_conv
from perf.studies.memory_estimate.int8_operators import integer_dense, quantized_conv, quantized_dense
from perf.studies.memory_estimate.row_operators import (
    attention,
    binary,
    cast,
    concat,
    dense,
    einsum,
    flatten,
    gemm,
    layer_norm,
    recurrent,
    reduce,
    reshape,
    softmax,
    split,
    top,
    transpose,
    unary,
    variadic,
    where,
)

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
    graph.grow(operators, OPERATORS)
    return graph.model()
