"""Small networks of the common kinds, with random weights and a dynamic batch: what the estimate is checked on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
OPSET, IR_VERSION = 17, 9


class Builder:
    """Adds nodes one after the other; each call gives the name of the tensor that it made."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; of several outputs, the name of the first (the others end in _1, _2)."""
        name = f"{kind.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}_{at}" for at in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """A float weight with random values."""
        return self.constant((self.rng.standard_normal(shape) / 8).astype(np.float32))

    def numbers(self, *values: int) -> str:
        """A constant vector of whole numbers."""
        return self.constant(np.array(values, np.int64))

    def constant(self, value: Any) -> str:
        """A constant."""
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(self, source: str, inside: int, outside: int, side: int = 3, *, stride: int = 1, group: int = 1) -> str:
        """A convolution with bias that keeps the size at stride 1."""
        weight, bias = self.weight(outside, inside // group, side, side), self.weight(outside)
        half = side // 2
        return self.node("Conv", source, weight, bias, group=group, strides=[stride] * 2, pads=[half] * 4)

    def dense(self, source: str, inside: int, outside: int) -> str:
        """A matrix product and a bias, as exporters write a linear layer."""
        return self.node("Add", self.node("MatMul", source, self.weight(inside, outside)), self.weight(outside))

    def model(
        self, name: str, inputs: Mapping[str, Sequence[int | str]], outputs: Mapping[str, str], kind: int = FLOAT
    ) -> onnx.ModelProto:
        """The whole model; `outputs` maps the name of an output to the tensor that it is."""
        for public, made in outputs.items():
            self.nodes.append(helper.make_node("Sigmoid", [made], [public], name=f"make_{public}"))
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(one, kind, shape) for one, shape in inputs.items()],
            [helper.make_tensor_value_info(one, FLOAT, None) for one in outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def depthwise(width: int = 16) -> onnx.ModelProto:
    """Inverted residuals as in MobileNetV2: 1x1 up, depthwise 3x3, 1x1 down, with Clip as ReLU6."""
    made = Builder()
    low, high = made.constant(np.float32(0)), made.constant(np.float32(6))
    flow = made.node("Clip", made.conv("x", 3, width, stride=2), low, high)
    for stride in (1, 2, 1, 2, 1):
        wide = 6 * width
        up = made.node("Clip", made.conv(flow, width, wide, 1), low, high)
        deep = made.node("Clip", made.conv(up, wide, wide, 3, stride=stride, group=wide), low, high)
        down = made.conv(deep, wide, width, 1)
        flow = made.node("Add", flow, down) if stride == 1 else down
    pooled = made.node("Flatten", made.node("GlobalAveragePool", flow))
    scores = made.node("Gemm", pooled, made.weight(10, width), made.weight(10), transB=1)
    return made.model("depthwise", {"x": ["batch", 3, 64, 64]}, {"scores": made.node("Softmax", scores)})


def unet(width: int = 8, depth: int = 3) -> onnx.ModelProto:
    """Down with MaxPool, up with ConvTranspose, each level joined to its twin by Concat."""
    made = Builder()
    flow, inside, twins = "x", 1, []
    for level in range(depth):
        wide = width * 2**level
        flow = made.node("Relu", made.conv(made.node("Relu", made.conv(flow, inside, wide)), wide, wide))
        twins.append((flow, wide))
        flow, inside = made.node("MaxPool", flow, kernel_shape=[2, 2], strides=[2, 2]), wide
    flow = made.node("Relu", made.conv(flow, inside, 2 * inside))
    inside *= 2
    for twin, wide in reversed(twins):
        up = made.node("ConvTranspose", flow, made.weight(inside, wide, 2, 2), made.weight(wide), strides=[2, 2])
        flow = made.node("Relu", made.conv(made.node("Concat", up, twin, axis=1), 2 * wide, wide))
        inside = wide
    return made.model("unet", {"x": ["batch", 1, 32, 32]}, {"mask": made.conv(flow, inside, 2, 1)})


def transformer(width: int = 64, heads: int = 4, layers: int = 2, length: int = 32) -> onnx.ModelProto:
    """An encoder over embeddings; heads split by Reshape to [0, 0, heads, -1] and Transpose, as exporters write it."""
    made = Builder()
    flow = made.node("Add", "x", made.weight(length, width))
    for _ in range(layers):
        flow = _normed(made, made.node("Add", flow, _attention(made, flow, width, heads)), width)
        wide = made.dense(flow, width, 4 * width)
        gelu = made.node("Mul", wide, made.node("Sigmoid", wide))
        flow = _normed(made, made.node("Add", flow, made.dense(gelu, 4 * width, width)), width)
    return made.model("transformer", {"x": ["batch", length, width]}, {"y": made.node("ReduceMean", flow, axes=[1])})


def _attention(made: Builder, flow: str, width: int, heads: int, mask: str | None = None) -> str:
    query, key, value = (
        made.node(
            "Transpose",
            made.node("Reshape", made.dense(flow, width, width), made.numbers(0, 0, heads, width // heads)),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    scores = made.node("MatMul", query, made.node("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = made.node("Div", scores, made.constant(np.float32((width // heads) ** 0.5)))
    masked = made.node("Add", scaled, mask) if mask else scaled
    mixed = made.node("MatMul", made.node("Softmax", masked, axis=-1), value)
    joined = made.node("Reshape", made.node("Transpose", mixed, perm=[0, 2, 1, 3]), made.numbers(0, 0, width))
    return made.dense(joined, width, width)


def _normed(made: Builder, flow: str, width: int) -> str:
    return made.node("LayerNormalization", flow, made.weight(width), made.weight(width), axis=-1)


def bert(width: int = 64, heads: int = 4, length: int = 16) -> onnx.ModelProto:
    """Token numbers to embeddings, a mask, and the Gelu that exporters spell out with Erf."""
    made = Builder()
    tokens = made.node("Cast", "tokens", to=INT64)
    flow = made.node("Add", made.node("Gather", made.weight(100, width), tokens), made.weight(length, width))
    flow = _normed(made, flow, width)
    mask = made.node("Unsqueeze", made.node("Cast", made.node("Cast", "mask", to=INT64), to=FLOAT), made.numbers(1, 2))
    mask = made.node("Mul", made.node("Sub", made.constant(np.float32(1)), mask), made.constant(np.float32(-1e4)))
    for _ in range(2):
        flow = _normed(made, made.node("Add", flow, _attention(made, flow, width, heads, mask)), width)
        wide = made.dense(flow, width, 4 * width)
        bent = made.node("Erf", made.node("Div", wide, made.constant(np.float32(2**0.5))))
        gelu = made.node("Mul", wide, made.node("Add", bent, made.constant(np.float32(1))))
        half = made.node("Mul", gelu, made.constant(np.float32(0.5)))
        flow = _normed(made, made.node("Add", flow, made.dense(half, 4 * width, width)), width)
    first = made.node("Gather", flow, made.constant(np.array(0)), axis=1)
    scores = made.node("Tanh", made.dense(first, width, width))
    inputs: dict[str, Sequence[int | str]] = {"tokens": ["batch", length], "mask": ["batch", length]}
    return made.model("bert", inputs, {"y": made.dense(scores, width, 2)}, kind=onnx.TensorProto.INT32)


def lstm(hidden: int = 24, length: int = 20, inside: int = 16) -> onnx.ModelProto:
    """Two layers, the first in both directions, over a batch that is transposed to the front of time."""
    made = Builder()
    flow = made.node("Transpose", "x", perm=[1, 0, 2])
    for width, direction in ((inside, "bidirectional"), (2 * hidden, "forward")):
        sides = 2 if direction == "bidirectional" else 1
        flow = made.node(
            "LSTM",
            flow,
            made.weight(sides, 4 * hidden, width),
            made.weight(sides, 4 * hidden, hidden),
            made.weight(sides, 8 * hidden),
            hidden_size=hidden,
            direction=direction,
        )
        flow = made.node("Transpose", flow, perm=[0, 2, 1, 3])
        flow = made.node("Reshape", flow, made.numbers(0, 0, sides * hidden))
    scores = made.dense(made.node("Transpose", flow, perm=[1, 0, 2]), hidden, 10)
    return made.model("lstm", {"x": ["batch", length, inside]}, {"y": made.node("LogSoftmax", scores)})


def gru(hidden: int = 32, length: int = 12, inside: int = 16) -> onnx.ModelProto:
    """Both directions, of which only the last state is wanted."""
    made = Builder()
    made.node(
        "GRU",
        made.node("Transpose", "x", perm=[1, 0, 2]),
        made.weight(2, 3 * hidden, inside),
        made.weight(2, 3 * hidden, hidden),
        made.weight(2, 6 * hidden),
        outputs=2,
        hidden_size=hidden,
        direction="bidirectional",
        linear_before_reset=1,
    )
    state = made.node("Transpose", "gru1_1", perm=[1, 0, 2])
    flat = made.node("Flatten", state)
    return made.model("gru", {"x": ["batch", length, inside]}, {"y": made.dense(flat, 2 * hidden, 4)})


def mlp(width: int = 256, layers: int = 4) -> onnx.ModelProto:
    """Dense layers with normalisation by running statistics, and a residual around each."""
    made = Builder()
    flow = made.dense("x", 32, width)
    for _ in range(layers):
        flow = made.node("Add", flow, made.node("Tanh", made.dense(flow, width, width)))
    return made.model("mlp", {"x": ["batch", 32]}, {"y": made.dense(flow, width, 1)})


def dense_net(width: int = 12, layers: int = 4) -> onnx.ModelProto:
    """Every layer takes all before it, joined by Concat, so that many tensors live at once."""
    made = Builder()
    flow, inside = made.node("Relu", made.conv("x", 3, width, 5, stride=2)), width
    for _ in range(layers):
        flow = made.node("Concat", flow, made.node("Relu", made.conv(flow, inside, width)), axis=1)
        inside += width
    pooled = made.node("Flatten", made.node("GlobalMaxPool", flow))
    return made.model("dense_net", {"x": ["batch", 3, 48, 48]}, {"y": made.dense(pooled, inside, 5)})


def upscaler(width: int = 16) -> onnx.ModelProto:
    """Super-resolution: a residual body, nearest-neighbour Resize, DepthToSpace, and a skip connection."""
    made = Builder()
    head = made.conv("x", 3, width, 5)
    flow = head
    for _ in range(3):
        inner = made.node("LeakyRelu", made.conv(flow, width, width), alpha=0.2)
        flow = made.node("Add", flow, made.conv(inner, width, width))
    shuffled = made.node("DepthToSpace", made.conv(flow, width, 12), blocksize=2)
    scales = made.constant(np.array([1, 1, 2, 2], np.float32))
    skip = made.node("Resize", "x", "", scales, mode="nearest")
    return made.model("upscaler", {"x": ["batch", 3, 24, 24]}, {"y": made.node("Add", shuffled, skip)})


def reshaper(length: int = 16, width: int = 32) -> onnx.ModelProto:
    """Shapes taken from the input at run time, so that the plan knows less than the run: Shape, Gather, Reshape."""
    made = Builder()
    zero, rest = made.numbers(0), made.numbers(-1)
    batch = made.node("Gather", made.node("Shape", "x"), zero, axis=0)
    target = made.node("Concat", batch, rest, axis=0)
    flow = made.node("Sigmoid", "x")
    flat = made.node("Tanh", made.node("Exp", made.node("Reshape", flow, target)))
    again = made.node("Reshape", made.node("Neg", flat), made.node("Shape", "x"))
    return made.model("reshaper", {"x": ["batch", length, width]}, {"y": made.node("Exp", made.node("Abs", again))})


ZOO: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "bert": bert,
    "dense_net": dense_net,
    "depthwise": depthwise,
    "depthwise_32": lambda: depthwise(32),
    "gru": gru,
    "lstm": lstm,
    "lstm_64": lambda: lstm(64),
    "mlp": mlp,
    "reshaper": reshaper,
    "transformer": transformer,
    "transformer_128": lambda: transformer(128, 8, 3, 24),
    "unet": unet,
    "unet_16": lambda: unet(16, 4),
    "upscaler": upscaler,
}
"""Name -> the model."""
