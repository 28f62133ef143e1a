"""What onnxruntime's CPU kernels register: outputs that alias an input, and outputs that may be written over one."""

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
    """Which input the output must share its buffer with; -1 for none."""
    return 0 if output == 0 and node.domain in ONNX_DOMAINS and node.op_type in ALIASES else -1


def inplace_inputs(node: onnx.NodeProto, output: int) -> Sequence[int]:
    """The inputs that the kernel may write the output over, in the order that they are tried."""
    if output > 0:
        return ()
    if (node.domain, node.op_type) in SUMMED:
        return (3,)
    return (0,) if node.domain in ONNX_DOMAINS and node.op_type in INPLACE else ()
