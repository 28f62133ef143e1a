"""Packed weights and scratch of the int8 kernels, on x86-64.

The rules follow qlinearconv.cc, conv_integer.cc, matmul_integer_base.h, quant_gemm.cc and dynamic_quantize_matmul.cc of
onnxruntime, and convsym.cpp, qgemm.h and platform.cpp of its MLAS.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from export.graph.onnx_graph import attribute
from perf.memory.estimate import processor
from perf.memory.estimate.call import Call, Scratch, Step
from perf.memory.estimate.graph import Graph

INT8 = onnx.TensorProto.INT8
FLOAT_BYTES, INT32_BYTES, POINTER_BYTES = 4, 4, 8
# MLAS packs a matrix in groups of 16 columns with a sum each; the size is a multiple of a cache line.
COLUMNS, LINE_BYTES = 16, 64
# `MlasConvSym` takes a multiple of 4 input channels, and from 16 on a multiple of 8 filters (4 with AVX-512).
SYMMETRIC_INPUTS, SYMMETRIC_OUTPUTS = 4, 16
# The index of the weight, of its zero point and of the other operand's zero point.
MATRICES = {
    "MatMulInteger": (1, 0),
    "DynamicQuantizeMatMul": (1, 0),
    "MatMulIntegerToFloat": (1, 0),
    "QLinearMatMul": (3, 0),
    "QGemm": (3, 0),
}
KERNELS = frozenset({*MATRICES, "DynamicQuantizeLSTM", "QLinearConv"})
"""The operators that pack their weights by processor."""
CONV_WEIGHT, CONV_INPUT_ZERO, CONV_WEIGHT_ZERO = 3, 2, 5


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The copy that a kernel packs of its input `index`; `chunk`: in the arena's bins, else reserved outside of them.

    `scratch` are the bytes of a chunk that is allocated for the packing and then freed, `reserved_scratch` outside.
    """

    index: int
    bytes: int
    chunk: bool = False
    scratch: int = 0
    reserved_scratch: int = 0


def packed(graph: Graph, node: onnx.NodeProto) -> Iterator[Packed]:
    """The packed copies of the constants of an int8 node."""
    if node.op_type in MATRICES:
        yield from _packed_matrix(graph, node, *MATRICES[node.op_type])
    elif node.op_type == "QLinearConv" and len(node.input) > CONV_WEIGHT:
        yield from _packed_filter(graph, node)
    elif node.op_type == "DynamicQuantizeLSTM":
        for index in (1, 2):
            tensor = graph.weights.get(node.input[index])
            if tensor is not None:
                sides, rows, columns = tensor.dims
                yield Packed(index=index, bytes=sides * gemm_bytes(rows, columns, signed=tensor.data_type == INT8))


def _packed_matrix(graph: Graph, node: onnx.NodeProto, index: int, operand: int) -> Iterator[Packed]:
    tensor = graph.weights.get(node.input[index])
    if tensor is None or len(tensor.dims) != 2:
        return
    transposed = bool(attribute(node, "transB", 0))
    rows, columns = reversed(tensor.dims) if transposed else tensor.dims
    left = _signed(graph, node.input[operand])
    size = gemm_bytes(rows, columns, signed=tensor.data_type == INT8, left=left)
    if size:
        yield Packed(index=index, bytes=size, scratch=prod(tensor.dims) if transposed else 0)


def gemm_bytes(rows: int, columns: int, *, signed: bool, left: bool = False) -> int:
    """`MlasGemmPackBSize` in bytes; 0 if the matrix is not packed.

    `signed` are the values of the matrix, `left` those of the other operand.
    """
    depth = _depth(signed, left)
    if not depth:
        return 0
    wide = _rounded(columns, COLUMNS)
    return _rounded(wide * INT32_BYTES + wide * _rounded(rows, depth), LINE_BYTES)


def _depth(signed: bool, left: bool) -> int:
    """The number of rows that are packed together."""
    flags = processor.flags()
    if left:
        return 4 if "avx_vnni_int8" in flags else 0
    if signed:
        return 64 if {"amx_tile", "amx_int8"} <= flags else 4
    return 4 if "avx_vnni_int8" in flags else 2


def _packed_filter(graph: Graph, node: onnx.NodeProto) -> Iterator[Packed]:
    tensor = graph.weights.get(node.input[CONV_WEIGHT])
    if tensor is None or len(tensor.dims) <= 2:
        return
    filters, inputs, *kernel = tensor.dims
    groups = attribute(node, "group", 1)
    if size := _symmetric_bytes(graph, node):
        yield Packed(index=CONV_WEIGHT, bytes=size, chunk=True)
        return
    size = 0
    if (inputs, filters) != (1, groups):
        left, signed = _signed(graph, node.input[0]), tensor.data_type == INT8
        size = groups * gemm_bytes(inputs * prod(kernel), filters // groups, signed=signed, left=left)
    scratch = prod(tensor.dims) // groups if size else 0
    yield Packed(index=CONV_WEIGHT, bytes=size or prod(tensor.dims), reserved_scratch=scratch)


def _symmetric_bytes(graph: Graph, node: onnx.NodeProto) -> int:
    """`MlasConvSymPackWSize` in bytes; 0 if the kernel does not take the filter."""
    tensor = graph.weights.get(node.input[CONV_WEIGHT])
    if tensor is None or tensor.data_type != INT8 or _signed(graph, node.input[0]):
        return 0
    zero = graph.weights.get(node.input[CONV_WEIGHT_ZERO])
    if zero is None or numpy_helper.to_array(zero).any() or node.input[CONV_INPUT_ZERO] not in graph.weights:
        return 0
    filters, inputs, *kernel = tensor.dims
    groups = attribute(node, "group", 1)
    if groups > 1:
        return filters * prod(kernel) if inputs == 1 and filters == groups and groups % 16 == 0 else 0
    step = 4 if "avx512bw" in processor.flags() else 8
    fits = filters >= SYMMETRIC_OUTPUTS and inputs % SYMMETRIC_INPUTS == 0 and filters % step == 0
    return _rounded(filters, SYMMETRIC_OUTPUTS) * inputs * prod(kernel) if fits else 0


def conv(call: Call) -> list[Step]:
    """`QLinearConv`: sums in int32, transposed copies of an image, and the image as a matrix or pointers into it."""
    weight, output = call.shape(CONV_WEIGHT), call.shapes[call.node.output[0]]
    last = bool(call.attribute("channels_last", 0))
    symmetric = bool(_symmetric_bytes(call.graph, call.node))
    constant = call.node.input[CONV_WEIGHT] in call.graph.weights
    image, made = prod(call.shape(0)[1:]), prod(output[1:])
    sizes = [] if constant else [prod(weight)]
    sizes += [] if symmetric else [INT32_BYTES * made]
    sizes += [] if last else [image, made]
    return [*call.outputs(), *(Scratch(bytes=size) for size in [*sizes, *_windows(call, symmetric)])]


def _windows(call: Call, symmetric: bool) -> list[int]:
    """Bytes of the image as a matrix, or of pointers into it."""
    weight, output = call.shape(CONV_WEIGHT), call.shapes[call.node.output[0]]
    filters, inputs, *kernel = weight
    groups = call.attribute("group", 1)
    pixels = prod(output[1:]) // filters
    depthwise = inputs == 1 and filters == groups
    if depthwise or (symmetric and _moves(call, kernel)):
        # The symmetric kernel runs all images of a batch at once if they are channels last.
        images = output[0] if symmetric and call.attribute("channels_last", 0) else 1
        return [POINTER_BYTES * prod(kernel) * pixels * images]
    if not _moves(call, kernel):
        return []
    return [(groups if len(kernel) > 2 else 1) * inputs * prod(kernel) * pixels]


def _moves(call: Call, kernel: list[int]) -> bool:
    """Whether the kernel reads more than the pixel that it writes."""
    strides = call.attribute("strides", [1] * len(kernel))
    pads = call.attribute("pads", [0] * 2 * len(kernel))
    return prod(kernel) != 1 or any(step != 1 for step in strides) or any(pads)


def conv_integer(call: Call) -> list[Step]:
    """`ConvInteger`: one group of an image as a matrix."""
    weight, output = call.shape(1), call.shapes[call.node.output[0]]
    pixels, kernel = prod(output[2:]), list(weight[2:])
    return [*call.outputs(), *([Scratch(bytes=prod(weight[1:]) * pixels)] if _moves(call, kernel) else [])]


def matrix(call: Call) -> list[Step]:
    """`QLinearMatMul`, and `QGemm` with an int8 output: the sums in int32."""
    output = prod(call.shapes[call.node.output[0]])
    return [*call.outputs(), Scratch(bytes=INT32_BYTES * output)]


def gemm(call: Call) -> list[Step]:
    """`QGemm`: copies of transposed operands, then the sums in int32 unless they are the output."""
    sizes = [prod(call.shape(0))] if call.attribute("transA", 0) else []
    if call.attribute("transB", 0) and call.node.input[3] not in dict(_packed_inputs(call)):
        sizes += [prod(call.shape(3))]
    sizes += [INT32_BYTES * prod(call.shapes[call.node.output[0]])] if call.has(7) else []
    return [*call.outputs(), *(Scratch(bytes=size) for size in sizes)]


def _packed_inputs(call: Call) -> list[tuple[str, Packed]]:
    return [(call.node.input[one.index], one) for one in packed(call.graph, call.node)]


def dynamic_matrix(call: Call) -> list[Step]:
    """`DynamicQuantizeMatMul`: the first operand in int8, then the output."""
    return [Scratch(bytes=prod(call.shape(0))), *call.outputs()]


def average_pool(call: Call) -> list[Step]:
    """`QLinearAveragePool`: the input in float."""
    return [*call.outputs(), Scratch(bytes=FLOAT_BYTES * prod(call.shape(0)))]


def softmax(call: Call) -> list[Step]:
    """`QLinearSoftmax` over an axis that is not the last: transposed copies of the input and of the output."""
    shape = call.shape(0)
    if call.attribute("opset") < 13 or call.attribute("axis", -1) % len(shape) == len(shape) - 1:
        return call.outputs()
    whole = Scratch(bytes=prod(shape))
    return [*call.outputs(), whole, whole]


def max_pool(call: Call) -> list[Step]:
    """`NhwcMaxPool`: a pointer to each element of each window of one image."""
    pixels = prod(call.shapes[call.node.output[0]][1:-1])
    return [*call.outputs(), Scratch(bytes=POINTER_BYTES * prod(call.attribute("kernel_shape")) * pixels)]


def where(call: Call) -> list[Step]:
    """`QLinearWhere`: X and Y, each broadcast with the condition, then the output."""
    chosen = [Scratch(bytes=prod(np.broadcast_shapes(call.shape(0), call.shape(at)))) for at in (1, 4)]
    return [*chosen, *call.outputs()]


def _signed(graph: Graph, name: str) -> bool:
    return name in graph.values and graph.values[name].type == INT8


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
