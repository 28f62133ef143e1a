"""onnxruntime's CPU kernels: which outputs alias an input, and which may be written over an input."""

from collections.abc import Sequence

import onnx

from perf.memory.estimate.graph import ONNX_DOMAINS

# `KernelDefBuilder::Alias(0, 0)`: the output is the input's bytes under another shape.
ALIASES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# `KernelDefBuilder::MayInplace(0, 0)`.
INPLACE = frozenset(
    {
        "BitCast",
        "Cast",
        "Celu",
        "Clip",
        "Elu",
        "HardSigmoid",
        "LeakyRelu",
        "LogSoftmax",
        "Relu",
        "Scatter",
        "ScatterElements",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Softsign",
        "Tanh",
        "TensorScatter",
        "ThresholdedRelu",
        "Trilu",
    }
)


# Convolutions that add a tensor of the output's shape may add to it in place: `MayInplace(3, 0)`.
SUMMED = frozenset({("com.microsoft", "FusedConv"), ("com.microsoft.nchwc", "Conv")})


def aliased_input(node: onnx.NodeProto, output: int) -> int:
    """The index of the input whose buffer the output must share; -1 for none."""
    return 0 if output == 0 and node.domain in ONNX_DOMAINS and node.op_type in ALIASES else -1


def inplace_inputs(node: onnx.NodeProto, output: int) -> Sequence[int]:
    """The indices of the inputs that the output may overwrite, in the order of onnxruntime's attempts."""
    if output > 0:
        return ()
    if (node.domain, node.op_type) in SUMMED:
        return (3,)
    return (0,) if node.domain in ONNX_DOMAINS and node.op_type in INPLACE else ()
