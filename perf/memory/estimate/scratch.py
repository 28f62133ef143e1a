"""The allocation steps of each kernel, in order: its outputs and its scratch buffers."""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from export.graph.onnx_graph import attribute
from perf.memory.estimate import body, convolution, quantized, recurrent
from perf.memory.estimate.call import Call, Scratch, Step
from perf.memory.estimate.graph import ONNX_DOMAINS

FLOAT = 4
Kernel = Callable[[Call], list[Step]]


def steps(call: Call) -> list[Step]:
    """The allocation steps of a node's kernel. A kernel that is not in `KERNELS` allocates only its outputs."""
    domain = "" if call.node.domain in ONNX_DOMAINS else f"{call.node.domain}."
    kernel = KERNELS.get(domain + call.node.op_type)
    return kernel(call) if kernel else call.outputs()


def _where(call: Call) -> list[Step]:
    """`Where<T>::Compute`: X and Y, each broadcast with the condition, then the output."""
    chosen = [Scratch(bytes=call.size(at) * prod(np.broadcast_shapes(call.shape(0), call.shape(at)))) for at in (1, 2)]
    return [*chosen, *call.outputs()]


def _variadic(call: Call) -> list[Step]:
    """`UntypedBroadcastVariadic`: from three inputs on, each partial result but the last has a buffer."""
    partial: list[Step] = []
    shape = call.shape(0)
    for at in range(1, len(call.node.input) - 1):
        shape = np.broadcast_shapes(shape, call.shape(at))
        partial.append(Scratch(bytes=call.size(0) * prod(shape), frees=len(partial) - 1 if partial else None))
    return [*partial, *call.outputs()]


def _softmax(call: Call) -> list[Step]:
    """From opset 13, over an axis that is not the last: transposed copies of the input and of the output."""
    shape = call.shape(0)
    axis = attribute(call.node, "axis", -1 if call.opset >= 13 else 1)
    if call.opset < 13 or axis % max(1, len(shape)) == len(shape) - 1:
        return call.outputs()
    whole = Scratch(bytes=call.size(0) * prod(shape))
    return [*call.outputs(), whole, whole]


def _resize(call: Call) -> list[Step]:
    """`SetupUpsampleBilinear`: two indices and two weights of four bytes per row and column of the output."""
    output = call.shapes[call.node.output[0]]
    if call.attribute("mode", b"nearest") != b"linear" or len(output) not in (2, 4):
        return call.outputs()
    return [*call.outputs(), Scratch(bytes=16 * sum(output[-2:]))]


def _lrn(call: Call) -> list[Step]:
    """The scale of every element, then the squares of one image, padded with `size - 1` channels of zeros."""
    shape = call.shape(0)
    channels, image = shape[1], prod(shape[2:])
    padded = (channels + call.attribute("size") - 1) * image
    return [*call.outputs(), Scratch(bytes=FLOAT * prod(shape)), Scratch(bytes=FLOAT * padded)]


def _bias_gelu(call: Call) -> list[Step]:
    """`BiasGelu`: the sum of input and bias."""
    return [*call.outputs(), Scratch(bytes=call.size(0) * prod(call.shape(0)))]


KERNELS: Mapping[str, Kernel] = {
    "Conv": convolution.conv,
    "ConvInteger": quantized.conv_integer,
    "ConvTranspose": convolution.conv_transpose,
    "GRU": recurrent.gru,
    "Hardmax": _softmax,
    "If": body.steps,
    "LRN": _lrn,
    "LSTM": recurrent.lstm,
    "LogSoftmax": _softmax,
    "Loop": body.steps,
    "Max": _variadic,
    "Mean": _variadic,
    "Min": _variadic,
    "QLinearConv": quantized.conv,
    "QLinearMatMul": quantized.matrix,
    "RNN": recurrent.rnn,
    "Resize": _resize,
    "Scan": body.steps,
    "Softmax": _softmax,
    "Sum": _variadic,
    "Where": _where,
    "com.microsoft.BiasGelu": _bias_gelu,
    "com.microsoft.DynamicQuantizeLSTM": recurrent.quantized_lstm,
    "com.microsoft.DynamicQuantizeMatMul": quantized.dynamic_matrix,
    "com.microsoft.FusedConv": convolution.conv,
    "com.microsoft.NhwcMaxPool": quantized.max_pool,
    "com.microsoft.QGemm": quantized.gemm,
    "com.microsoft.QLinearAveragePool": quantized.average_pool,
    "com.microsoft.QLinearConv": quantized.conv,
    "com.microsoft.QLinearSoftmax": quantized.softmax,
    "com.microsoft.QLinearWhere": quantized.where,
}
