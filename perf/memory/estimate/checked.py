"""The operators whose kernels' memory is known to the byte, and the nodes of a graph with other operators."""

from collections import Counter
from collections.abc import Iterable

import onnx

from export.graph.onnx_graph import attribute
from perf.memory.estimate.graph import ONNX_DOMAINS, Graph, subgraphs

NAMES = """
    Abs Acos Acosh Add AffineGrid And ArgMax ArgMin ArrayFeatureExtractor Asin Asinh Atan Atanh AveragePool
    Binarizer BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu
    CenterCropPad Clip Col2Im Concat ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum
    DepthToSpace DequantizeLinear Det Div Dropout DynamicQuantizeLinear Elu Equal Erf Exp Expand EyeLike
    Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization
    IsInf IsNaN LRN LSTM LabelEncoder LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
    LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxUnpool Mean Min Mish Mod Mul Neg
    NegativeLogLikelihoodLoss Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear
    RMSNormalization RNN Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare RegexFullMatch Relu Reshape ReverseSequence RotaryEmbedding
    Round STFT Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax
    SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze StringConcat Sub Sum Swish Tan
    Tanh TensorScatter TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""
CHECKED = frozenset(NAMES.split())
"""Exact on all of their node tests in onnx that onnxruntime runs and whose shapes do not depend on values.

So are ConstantOfShape, whose shape is computed, and the int8 kernels on tensors of more sizes."""

FUSED = frozenset(
    {
        "com.microsoft.BiasGelu",
        "com.microsoft.DynamicQuantizeLSTM",
        "com.microsoft.DynamicQuantizeMatMul",
        "com.microsoft.FusedConv",
        "com.microsoft.FusedGemm",
        "com.microsoft.FusedMatMul",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.NhwcMaxPool",
        "com.microsoft.QGemm",
        "com.microsoft.QLinearAdd",
        "com.microsoft.QLinearAveragePool",
        "com.microsoft.QLinearConcat",
        "com.microsoft.QLinearConv",
        "com.microsoft.QLinearGlobalAveragePool",
        "com.microsoft.QLinearLeakyRelu",
        "com.microsoft.QLinearMul",
        "com.microsoft.QLinearSigmoid",
        "com.microsoft.QLinearSoftmax",
        "com.microsoft.QLinearWhere",
        "com.microsoft.QuickGelu",
        "com.microsoft.SkipLayerNormalization",
        "com.microsoft.nchwc.Conv",
        "com.microsoft.nchwc.GlobalAveragePool",
        "com.microsoft.nchwc.MaxPool",
        "com.microsoft.nchwc.ReorderInput",
        "com.microsoft.nchwc.ReorderOutput",
    }
)
"""Fused operators of the higher optimisation levels, exact in 21 networks."""

FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators whose memory depends on values; `perf.memory.estimate.body` has a bound."""

PARTLY = {"BatchNormalization": "training_mode", "Resize": "antialias"}
"""Exact unless this attribute is set."""


def unchecked(graph: Graph) -> dict[str, int]:
    """The number of nodes by operator whose kernels may take scratch memory that is not simulated."""
    return counts(node for node in graph.nodes if not is_known(node) and not is_bounded(node))


def bounded(graph: Graph) -> dict[str, int]:
    """The number of nodes by operator of whose memory only a bound is known."""
    return counts(node for node in graph.nodes if is_bounded(node))


def is_bounded(node: onnx.NodeProto) -> bool:
    """Whether it is an If, Loop or Scan, and the kernels in its bodies are all known."""
    inner = [inside for body in subgraphs(node) for inside in body.node]
    return node.op_type in FLOW and all(is_known(inside) or is_bounded(inside) for inside in inner)


def counts(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """The number of nodes by operator."""
    return dict(Counter(node.op_type for node in nodes))


def is_known(node: onnx.NodeProto) -> bool:
    """Whether the memory of the kernel is known to the byte."""
    if node.domain not in ONNX_DOMAINS:
        return f"{node.domain}.{node.op_type}" in FUSED
    switch = PARTLY.get(node.op_type)
    return not attribute(node, switch, 0) if switch else node.op_type in CHECKED
