"""Working buffers of Conv and ConvTranspose.

The rules follow `MlasConvPrepare` in onnxruntime/core/mlas/lib/convolve.cpp (x86-64) and of
onnxruntime/core/providers/cpu/nn/conv_transpose.cc.
"""

from math import ceil, prod

from perf.memory.estimate import processor
from perf.memory.estimate.call import Call, Scratch, Step

FLOAT = 4
# MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD: one tile of 128 x 128.
TILE = 128 * 128
# MLAS_SGEMM_THREAD_COMPLEXITY, MLAS_MAXIMUM_THREAD_COUNT, MLAS_SGEMM_STRIDEN_THREAD_ALIGN.
THREAD_COMPLEXITY = 64 * 1024
MOST_THREADS = 16
STRIDE_ALIGN = 16


def conv(call: Call) -> list[Step]:
    """The output, then the working buffer if there is one."""
    floats = working_floats(call)
    return [*call.outputs(), *([Scratch(bytes=FLOAT * floats)] if floats else [])]


def working_floats(call: Call) -> int:
    """Elements of the buffer that holds the input as a matrix."""
    weight, output = call.shape(1), call.shapes[call.node.output[0]]
    groups, kernel = int(call.attribute("group", 1)), weight[2:]
    filters, pixels = weight[0] // groups, prod(output[2:])
    depth = prod(weight[1:])
    if _direct(call):
        return 0
    if filters > pixels:
        return pixels * depth
    if len(kernel) == 2 and groups > 1 and _doubling(call, filters):
        return 0
    if output[0] > 1 or groups > 1:
        return min(call.threads, output[0] * groups) * TILE
    return _segments(filters, pixels, depth, call.threads) * TILE


def _direct(call: Call) -> bool:
    """Whether the input is already a matrix: the kernel has one element or spans the input's width or height."""
    weight, inputs = call.shape(1), call.shape(0)[2:]
    kernel, channels = weight[2:], weight[1]
    ones = [1] * len(kernel)
    padded = any(_pads(call)) or call.attribute("strides", ones) != ones
    if padded:
        return False
    if prod(kernel) == 1:
        return True
    if len(kernel) > 2 or call.attribute("dilations", ones) != ones or channels != 1:
        return False
    (high, wide), (rows, columns) = ([1, *kernel])[-2:], ([1, *inputs])[-2:]
    return wide == columns or (high == rows and wide == 1)


def _doubling(call: Call, filters: int) -> bool:
    """Whether it is depthwise, 7 x 7, of stride 2, and doubles the channels: with AVX-512 that has its own routine.

    `MlasConvDepthwiseMultiplier2CHWKernel7x7S2Avx512F`; the estimate is for the CPU of this machine.
    """
    fits = "avx512f" in processor.flags() and filters == 2 and tuple(call.shape(1)[1:]) == (1, 7, 7)
    return fits and call.attribute("strides", [1, 1]) == [2, 2] and set(_pads(call)) == {3}


def _pads(call: Call) -> list[int]:
    """Zeros before and after each axis; computed if the node says SAME."""
    kernel, auto = call.shape(1)[2:], call.attribute("auto_pad", b"NOTSET").decode()
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        return list(call.attribute("pads", [0] * 2 * len(kernel)))
    ones = [1] * len(kernel)
    strides, dilations = call.attribute("strides", ones), call.attribute("dilations", ones)
    sides = zip(call.shape(0)[2:], kernel, strides, dilations, strict=True)
    return [max(0, (ceil(size / step) - 1) * step + (side - 1) * gap + 1 - size) for size, side, step, gap in sides]


def _segments(filters: int, pixels: int, depth: int, threads: int) -> int:
    """The number of threads that share one image."""
    work = filters * pixels * depth
    target = min(work // THREAD_COMPLEXITY + 1 if work < THREAD_COMPLEXITY * MOST_THREADS else MOST_THREADS, threads)
    if target == 1:
        return 1
    stride = ceil(ceil(pixels / target) / STRIDE_ALIGN) * STRIDE_ALIGN
    if stride >= pixels:
        return 1
    return target - 1 if stride * (target - 1) >= pixels else target


def conv_transpose(call: Call) -> list[Step]:
    """The output, then one image's columns: for each input pixel, the kernel size times the filters of a group."""
    weight, pixels = call.shape(1), prod(call.shape(0)[2:])
    return [*call.outputs(), Scratch(bytes=FLOAT * prod(weight[1:]) * pixels)]
