"""`export.add --variable-length` refuses graphs whose padding shows only for some values, lengths or neighbours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from added_graphs import graph
from onnx import TensorProto, helper, numpy_helper

from export.graph.input_values import ranges
from export.graph.onnx_graph import load
from export.graph.padding_axes import PaddingError, Variation
from export.graph.padding_proof import Padding, prove
from triton_batching.terminal import Mistake

FLOAT = TensorProto.FLOAT


def node(kind: str, takes: Sequence[str], gives: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, takes, [gives], **attributes)


def constant(name: str, *values: float, shape: Sequence[int] | None = None, whole: bool = False) -> onnx.TensorProto:
    array = np.array(values, dtype=np.int64 if whole else np.float32)
    return numpy_helper.from_array(array if shape is None else array.reshape(shape), name)


def second(name: str, size: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, ["batch", size])


def proved(path: Path, **fills: float) -> Padding:
    model = load(path)
    return prove(model, ranges(model, {}, {}), length=16, tolerance=1e-4, variation=Variation.of(model, fills))


LENGTH: dict[str, Any] = {"takes": ("batch", "length")}
SCORE = [
    node("ReduceMean", ["x"], "mean", axes=[1], keepdims=1),
    node("Mul", ["mean", "none"], "nothing"),
    node("Add", ["nothing", "boxes"], "box"),
    node("Sigmoid", ["mean"], "score"),
    node("Concat", ["box", "score"], "y", axis=1),
]
LEAKS: dict[str, dict[str, Any]] = {
    "a maximum of negative values only": {
        "nodes": [node("ReduceMax", ["x"], "y", axes=[1], keepdims=1)],
        "gives": ("batch", 1),
    },
    "one of two classes": {
        "nodes": [
            node("ReduceMean", ["x"], "mean", axes=[1], keepdims=1),
            node("Greater", ["mean", "half"], "large"),
            node("Cast", ["large"], "y", to=FLOAT),
        ],
        "gives": ("batch", 1),
        "constants": [constant("half", 0.5)],
    },
    "a window that reaches far": {
        "nodes": [
            node("Add", ["x", "one"], "moved"),
            node("Conv", ["moved", "kernel"], "y", kernel_shape=[3], dilations=[64], pads=[64, 64]),
        ],
        "takes": ("batch", 1, "length"),
        "gives": ("batch", 1, "steps"),
        "constants": [constant("one", 1), constant("kernel", 1, 2, 3, shape=(1, 1, 3))],
    },
    "a small column beside a large one": {
        "nodes": SCORE,
        "gives": ("batch", 5),
        "constants": [constant("none", 0, 0, 0, 0, shape=(1, 4)), constant("boxes", 10, 20, 640, 480, shape=(1, 4))],
    },
}


@pytest.mark.parametrize("name", LEAKS)
def test_padding_that_reaches_some_answers_is_found(name: str, tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", **(LENGTH | LEAKS[name]))
    with pytest.raises(PaddingError, match=r"of a request that is padded from \d+ to \d+ elements differs"):
        proved(path)


def test_an_output_that_is_longer_than_a_short_request_has_no_cut(tmp_path: Path) -> None:
    """It has 16 elements or more, so a request of 3 would lose 13 of its own."""
    nodes = [
        node("Shape", ["x"], "size", start=1, end=2),
        node("Sub", ["sixteen", "size"], "less"),
        node("Max", ["less", "zero"], "missing"),
        node("Concat", ["zero", "zero", "zero", "missing"], "pads", axis=0),
        node("Pad", ["x", "pads"], "y"),
    ]
    constants = [constant("sixteen", 16, whole=True), constant("zero", 0, whole=True)]
    path = graph(tmp_path / "m.onnx", nodes, **LENGTH, gives=("batch", "steps"), constants=constants)
    with pytest.raises(PaddingError, match=r"of length 1 has shape \[16\], and other lengths lead to \[1\]"):
        proved(path)


def test_an_output_that_follows_two_lengths_has_no_cut(tmp_path: Path) -> None:
    nodes = [node("Concat", ["x", "w"], "both", axis=1), node("Relu", ["both"], "y")]
    path = graph(tmp_path / "m.onnx", nodes, takes=("batch", "a"), gives=("batch", "steps"), others=[second("w", "b")])
    with pytest.raises(PaddingError, match=r"follows x\[1\] and w\[1\]"):
        proved(path)


def test_masks_are_mixed_in_a_batch(tmp_path: Path) -> None:
    """The mask of the first row is used for all: nothing shows as long as all rows are padded alike."""
    nodes = [
        node("Slice", ["mask", "zero", "one", "zero"], "first"),
        node("Mul", ["x", "first"], "kept"),
        node("ReduceSum", ["kept", "one"], "total"),
        node("ReduceSum", ["first", "one"], "count"),
        node("Div", ["total", "count"], "y"),
    ]
    constants = [constant("zero", 0, whole=True), constant("one", 1, whole=True)]
    path = graph(
        tmp_path / "m.onnx", nodes, **LENGTH, gives=("batch", 1), constants=constants, others=[second("mask", "length")]
    )
    with pytest.raises(PaddingError, match="in a batch with requests of other lengths"):
        proved(path)


def test_a_maximum_is_right_with_minus_infinity(tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", **(LENGTH | LEAKS["a maximum of negative values only"]))
    padding = proved(path, x=-np.inf)
    assert padding.parameters["pad"] == "x[1]=-inf"
    assert min(padding.lengths) == 1
    assert padding.longest >= 2048
    with pytest.raises(Mistake, match="NaN is not a value to fill with"):
        proved(path, x=np.nan)
