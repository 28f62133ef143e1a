"""Small networks of common kinds with random weights and a dynamic batch, for checks of the estimate."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
OPSET, IR_VERSION = 17, 9


class Builder:
    """Adds nodes one by one; each call returns the name of the node's first output."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; the names of further outputs end in _1, _2."""
        name = f"{kind.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}_{at}" for at in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Add a float weight with random values."""
        return self.constant((self.rng.standard_normal(shape) / 8).astype(np.float32))

    def numbers(self, *values: int) -> str:
        """Add a constant vector of integers."""
        return self.constant(np.array(values, np.int64))

    def constant(self, value: Any) -> str:
        """Add a constant."""
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(self, source: str, inside: int, outside: int, side: int = 3, *, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with bias and the padding that keeps the size at stride 1."""
        weight, bias = self.weight(outside, inside // group, side, side), self.weight(outside)
        half = side // 2
        return self.node("Conv", source, weight, bias, group=group, strides=[stride] * 2, pads=[half] * 4)

    def dense(self, source: str, inside: int, outside: int) -> str:
        """Add a matrix product and a bias, as exporters write a linear layer."""
        return self.node("Add", self.node("MatMul", source, self.weight(inside, outside)), self.weight(outside))

    def model(
        self, name: str, inputs: Mapping[str, Sequence[int | str]], outputs: Mapping[str, str], kind: int = FLOAT
    ) -> onnx.ModelProto:
        """The model; `outputs` maps the name of an output to its tensor."""
        for public, net in outputs.items():
            self.nodes.append(helper.make_node("Sigmoid", [net], [public], name=f"make_{public}"))
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(public, kind, shape) for public, shape in inputs.items()],
            [helper.make_tensor_value_info(public, FLOAT, None) for public in outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def depthwise(width: int = 16) -> onnx.ModelProto:
    """Inverted residuals of MobileNetV2: 1x1 up, depthwise 3x3, 1x1 down, with Clip as ReLU6."""
    net = Builder()
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    current = net.node("Clip", net.conv("x", 3, width, stride=2), low, high)
    for stride in (1, 2, 1, 2, 1):
        wide = 6 * width
        up = net.node("Clip", net.conv(current, width, wide, 1), low, high)
        deep = net.node("Clip", net.conv(up, wide, wide, 3, stride=stride, group=wide), low, high)
        down = net.conv(deep, wide, width, 1)
        current = net.node("Add", current, down) if stride == 1 else down
    pooled = net.node("Flatten", net.node("GlobalAveragePool", current))
    scores = net.node("Gemm", pooled, net.weight(10, width), net.weight(10), transB=1)
    return net.model("depthwise", {"x": ["batch", 3, 64, 64]}, {"scores": net.node("Softmax", scores)})


def unet(width: int = 8, depth: int = 3) -> onnx.ModelProto:
    """Down with MaxPool, up with ConvTranspose; Concat joins the two halves at each level."""
    net = Builder()
    current, inside, twins = "x", 1, []
    for level in range(depth):
        wide = width * 2**level
        current = net.node("Relu", net.conv(net.node("Relu", net.conv(current, inside, wide)), wide, wide))
        twins.append((current, wide))
        current, inside = net.node("MaxPool", current, kernel_shape=[2, 2], strides=[2, 2]), wide
    current = net.node("Relu", net.conv(current, inside, 2 * inside))
    inside *= 2
    for twin, wide in reversed(twins):
        up = net.node("ConvTranspose", current, net.weight(inside, wide, 2, 2), net.weight(wide), strides=[2, 2])
        current = net.node("Relu", net.conv(net.node("Concat", up, twin, axis=1), 2 * wide, wide))
        inside = wide
    return net.model("unet", {"x": ["batch", 1, 32, 32]}, {"mask": net.conv(current, inside, 2, 1)})


def transformer(width: int = 64, heads: int = 4, layers: int = 2, length: int = 32) -> onnx.ModelProto:
    """An encoder over embeddings; Reshape to [0, 0, heads, -1] and Transpose split the heads, as exporters write it."""
    net = Builder()
    current = net.node("Add", "x", net.weight(length, width))
    for _ in range(layers):
        current = _normed(net, net.node("Add", current, _attention(net, current, width, heads)), width)
        wide = net.dense(current, width, 4 * width)
        gelu = net.node("Mul", wide, net.node("Sigmoid", wide))
        current = _normed(net, net.node("Add", current, net.dense(gelu, 4 * width, width)), width)
    return net.model("transformer", {"x": ["batch", length, width]}, {"y": net.node("ReduceMean", current, axes=[1])})


def _attention(net: Builder, current: str, width: int, heads: int, mask: str | None = None) -> str:
    query, key, value = (
        net.node(
            "Transpose",
            net.node("Reshape", net.dense(current, width, width), net.numbers(0, 0, heads, width // heads)),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = net.node("Div", scores, net.constant(np.float32((width // heads) ** 0.5)))
    masked = net.node("Add", scaled, mask) if mask else scaled
    mixed = net.node("MatMul", net.node("Softmax", masked, axis=-1), value)
    joined = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), net.numbers(0, 0, width))
    return net.dense(joined, width, width)


def _normed(net: Builder, current: str, width: int) -> str:
    return net.node("LayerNormalization", current, net.weight(width), net.weight(width), axis=-1)


def bert(width: int = 64, heads: int = 4, length: int = 16) -> onnx.ModelProto:
    """Embeddings of tokens, a mask, and a Gelu that exporters write with Erf."""
    net = Builder()
    tokens = net.node("Cast", "tokens", to=INT64)
    current = net.node("Add", net.node("Gather", net.weight(100, width), tokens), net.weight(length, width))
    current = _normed(net, current, width)
    mask = net.node("Unsqueeze", net.node("Cast", net.node("Cast", "mask", to=INT64), to=FLOAT), net.numbers(1, 2))
    mask = net.node("Mul", net.node("Sub", net.constant(np.float32(1)), mask), net.constant(np.float32(-1e4)))
    for _ in range(2):
        current = _normed(net, net.node("Add", current, _attention(net, current, width, heads, mask)), width)
        wide = net.dense(current, width, 4 * width)
        bent = net.node("Erf", net.node("Div", wide, net.constant(np.float32(2**0.5))))
        gelu = net.node("Mul", wide, net.node("Add", bent, net.constant(np.float32(1))))
        half = net.node("Mul", gelu, net.constant(np.float32(0.5)))
        current = _normed(net, net.node("Add", current, net.dense(half, 4 * width, width)), width)
    first = net.node("Gather", current, net.constant(np.array(0)), axis=1)
    scores = net.node("Tanh", net.dense(first, width, width))
    inputs: dict[str, Sequence[int | str]] = {"tokens": ["batch", length], "mask": ["batch", length]}
    return net.model("bert", inputs, {"y": net.dense(scores, width, 2)}, kind=onnx.TensorProto.INT32)


def lstm(hidden: int = 24, length: int = 20, inside: int = 16) -> onnx.ModelProto:
    """Two layers, the first in both directions, with the time as the first axis."""
    net = Builder()
    current = net.node("Transpose", "x", perm=[1, 0, 2])
    for width, direction in ((inside, "bidirectional"), (2 * hidden, "forward")):
        sides = 2 if direction == "bidirectional" else 1
        current = net.node(
            "LSTM",
            current,
            net.weight(sides, 4 * hidden, width),
            net.weight(sides, 4 * hidden, hidden),
            net.weight(sides, 8 * hidden),
            hidden_size=hidden,
            direction=direction,
        )
        current = net.node("Transpose", current, perm=[0, 2, 1, 3])
        current = net.node("Reshape", current, net.numbers(0, 0, sides * hidden))
    scores = net.dense(net.node("Transpose", current, perm=[1, 0, 2]), hidden, 10)
    return net.model("lstm", {"x": ["batch", length, inside]}, {"y": net.node("LogSoftmax", scores)})


def gru(hidden: int = 32, length: int = 12, inside: int = 16) -> onnx.ModelProto:
    """Both directions; only the last state is used."""
    net = Builder()
    net.node(
        "GRU",
        net.node("Transpose", "x", perm=[1, 0, 2]),
        net.weight(2, 3 * hidden, inside),
        net.weight(2, 3 * hidden, hidden),
        net.weight(2, 6 * hidden),
        outputs=2,
        hidden_size=hidden,
        direction="bidirectional",
        linear_before_reset=1,
    )
    state = net.node("Transpose", "gru1_1", perm=[1, 0, 2])
    flat = net.node("Flatten", state)
    return net.model("gru", {"x": ["batch", length, inside]}, {"y": net.dense(flat, 2 * hidden, 4)})


def mlp(width: int = 256, layers: int = 4) -> onnx.ModelProto:
    """Dense layers with a residual around each."""
    net = Builder()
    current = net.dense("x", 32, width)
    for _ in range(layers):
        current = net.node("Add", current, net.node("Tanh", net.dense(current, width, width)))
    return net.model("mlp", {"x": ["batch", 32]}, {"y": net.dense(current, width, 1)})


def dense_net(width: int = 12, layers: int = 4) -> onnx.ModelProto:
    """Each layer reads all layers before it, joined by Concat, so that many tensors are live at once."""
    net = Builder()
    current, inside = net.node("Relu", net.conv("x", 3, width, 5, stride=2)), width
    for _ in range(layers):
        current = net.node("Concat", current, net.node("Relu", net.conv(current, inside, width)), axis=1)
        inside += width
    pooled = net.node("Flatten", net.node("GlobalMaxPool", current))
    return net.model("dense_net", {"x": ["batch", 3, 48, 48]}, {"y": net.dense(pooled, inside, 5)})


def upscaler(width: int = 16) -> onnx.ModelProto:
    """Super-resolution: a residual body, nearest-neighbour Resize, DepthToSpace, and a skip connection."""
    net = Builder()
    head = net.conv("x", 3, width, 5)
    current = head
    for _ in range(3):
        inner = net.node("LeakyRelu", net.conv(current, width, width), alpha=0.2)
        current = net.node("Add", current, net.conv(inner, width, width))
    shuffled = net.node("DepthToSpace", net.conv(current, width, 12), blocksize=2)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    skip = net.node("Resize", "x", "", scales, mode="nearest")
    return net.model("upscaler", {"x": ["batch", 3, 24, 24]}, {"y": net.node("Add", shuffled, skip)})


def reshaper(length: int = 16, width: int = 32) -> onnx.ModelProto:
    """Shapes computed from the input at run time (Shape, Gather, Reshape), which the allocation plan cannot know."""
    net = Builder()
    zero, rest = net.numbers(0), net.numbers(-1)
    batch = net.node("Gather", net.node("Shape", "x"), zero, axis=0)
    target = net.node("Concat", batch, rest, axis=0)
    current = net.node("Sigmoid", "x")
    flat = net.node("Tanh", net.node("Exp", net.node("Reshape", current, target)))
    again = net.node("Reshape", net.node("Neg", flat), net.node("Shape", "x"))
    return net.model("reshaper", {"x": ["batch", length, width]}, {"y": net.node("Exp", net.node("Abs", again))})


# The functions that build the networks, by name.
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
