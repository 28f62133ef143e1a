"""The proof of `--variable-length`: padded requests answer as alone, or the node that lets padding in is named."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from added_graphs import graph, numbers, weights
from onnx import TensorProto, helper, numpy_helper
from padded_models import encoder

from export.graph.input_values import ranges
from export.graph.onnx_graph import load
from export.graph.padding_axes import PaddingError, Variation
from export.graph.padding_cut import Cut
from export.graph.padding_proof import Padding, prove
from export.graph.rounding import roundings
from triton_batching.terminal import Mistake


def proved(path: Path, **values: float) -> Padding:
    model = load(path)
    variation = Variation.of(model, values)
    return prove(model, ranges(model, {}, {}), length=16, roundings=roundings(model), variation=variation)


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, name="culprit", **attributes)


def test_a_mask_is_found_and_outputs_are_cut(tmp_path: Path) -> None:
    padding = proved(encoder(tmp_path) / "1" / "model.onnx")
    assert padding.parameters == {"pad": "tokens[1]=0", "pad_mask": "mask=tokens[1]", "cut": "each[1]=tokens[1]"}
    assert padding.difference.error <= 1e-5
    assert min(padding.lengths) < 8 < 16 <= max(padding.lengths)


INDICES = [numbers("one", 1)]


@pytest.mark.parametrize(
    ("nodes", "gives", "message"),
    [
        (
            [node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)],
            ("batch",),
            r'"culprit" \(ReduceMean\) takes padding into its sum, mean or maximum over the length',
        ),
        (
            [node("Softmax", ["x"], ["y"], axis=1)],
            ("batch", "length"),
            r'"culprit" \(Softmax\) gives padding a share of the attention',
        ),
        (
            [
                helper.make_node("Unsqueeze", ["x", "one"], ["channel"]),
                node("Conv", ["channel", "kernel", "bias"], ["wide"], kernel_shape=[3], pads=[1, 1]),
                helper.make_node("Conv", ["wide", "kernel"], ["again"], kernel_shape=[3], pads=[1, 1]),
                helper.make_node("Squeeze", ["again", "one"], ["y"]),
            ],
            ("batch", "length"),
            r"\(Conv\) looks beyond the last own element \(its window is \[3\]\)",
        ),
        (
            [
                helper.make_node("Unsqueeze", ["x", "one"], ["channel"]),
                node("InstanceNormalization", ["channel", "ones", "bias"], ["same"]),
                helper.make_node("Squeeze", ["same", "one"], ["y"]),
            ],
            ("batch", "length"),
            r'"culprit" \(InstanceNormalization\) takes mean and variance over the length',
        ),
        (
            [node("Gather", ["x", "last"], ["y"], axis=1)],
            ("batch", 1),
            r'"culprit" \(Gather\) counts from the end, which is padding',
        ),
    ],
)
def test_the_node_that_lets_padding_in_is_named(
    nodes: list[onnx.NodeProto], gives: tuple[int | str, ...], message: str, tmp_path: Path
) -> None:
    constants = [
        *INDICES,
        numbers("last", -1),
        numpy_helper.from_array(np.full((1, 1, 3), 0.5, dtype=np.float32), "kernel"),
        numpy_helper.from_array(np.ones(1, dtype=np.float32), "bias"),
        numpy_helper.from_array(np.ones(1, dtype=np.float32), "ones"),
    ]
    used = {name for each in nodes for name in each.input}
    path = graph(
        tmp_path / "m.onnx",
        nodes,
        takes=("batch", "length"),
        gives=gives,
        constants=[constant for constant in constants if constant.name in used],
    )
    with pytest.raises(PaddingError, match=message):
        proved(path)


def test_another_fill_can_keep_padding_out(tmp_path: Path) -> None:
    """The maximum over the length takes a padding of 0 for an element, and not one of -1e6."""
    path = graph(
        tmp_path / "m.onnx",
        [
            helper.make_node("Abs", ["x"], ["positive"]),
            helper.make_node("Neg", ["positive"], ["negative"]),
            node("ReduceMax", ["negative"], ["y"], axes=[1], keepdims=0),
        ],
        takes=("batch", "length"),
        gives=("batch",),
    )
    with pytest.raises(PaddingError, match="takes padding into its sum, mean or maximum"):
        proved(path)
    assert proved(path, x=-1e6).parameters == {"pad": "x[1]=-1000000"}


def test_outputs_may_have_a_fraction_of_the_length(tmp_path: Path) -> None:
    """A convolution of width 4 and stride 4 has a step for every four elements that are complete."""
    path = graph(
        tmp_path / "m.onnx",
        [
            helper.make_node("Unsqueeze", ["x", "one"], ["channel"]),
            helper.make_node("Conv", ["channel", "kernel"], ["y"], kernel_shape=[4], strides=[4]),
        ],
        takes=("batch", "length"),
        gives=("batch", 1, "steps"),
        constants=[*INDICES, numpy_helper.from_array(np.full((1, 1, 4), 0.5, dtype=np.float32), "kernel")],
    )
    padding = proved(path)
    assert padding.parameters["cut"] == "y[2]=x[1]/4"
    (cut,) = padding.cuts["y"]
    assert [cut.size(length) for length in (3, 4, 7, 8)] == [0, 1, 1, 2]
    assert str(Cut(index=2, source=cut.source, moved=3, stride=4)) == "(x[1]+3)/4"


def strided(path: Path, strides: list[int], pads: list[int]) -> Path:
    """Convolutions of width 3 with these strides, as audio models begin; the middle counts, so none sees padding."""
    nodes, last = [helper.make_node("Unsqueeze", ["x", "one"], ["c0"])], "c0"
    for number, stride in enumerate(strides, 1):
        name = "y" if number == len(strides) else f"c{number}"
        nodes.append(helper.make_node("Conv", [last, "kernel"], [name], kernel_shape=[3], strides=[stride], pads=pads))
        last = name
    kernel = numpy_helper.from_array(np.array([[[0, 0.5, 0]]], dtype=np.float32), "kernel")
    takes, gives = ("batch", "length"), ("batch", 1, "steps")
    return graph(path, nodes, takes=takes, gives=gives, constants=[*INDICES, kernel])


def test_lengths_in_a_row_show_the_one_fraction(tmp_path: Path) -> None:
    """Two of stride 2 with padding: ceil(length / 4), which is (length + 3) / 4; a request of 5 has two steps."""
    padding = proved(strided(tmp_path / "m.onnx", [2, 2], [1, 1]))
    assert padding.parameters["cut"] == "y[2]=(x[1]+3)/4"
    (cut,) = padding.cuts["y"]
    assert [cut.size(length) for length in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


def test_lengths_are_tried_until_the_output_moves(tmp_path: Path) -> None:
    """A step is 128 elements, and lengths near 16 have one."""
    assert proved(strided(tmp_path / "m.onnx", [4, 4, 8], [1, 1])).parameters["cut"] == "y[2]=(x[1]+127)/128"


def test_a_fill_must_be_a_value_of_its_input(tmp_path: Path) -> None:
    path = encoder(tmp_path) / "1" / "model.onnx"
    assert proved(path, tokens=31.0).parameters["pad"] == "tokens[1]=31"
    with pytest.raises(Mistake, match=r"--pad-value tokens=0\.5: the input is int64, which holds whole numbers"):
        proved(path, tokens=0.5)


def test_another_mask_is_the_clients_unless_it_is_named(tmp_path: Path) -> None:
    """An input that only has mask in its name may mean something else."""
    source = encoder(tmp_path / "source") / "1" / "model.onnx"
    model = onnx.load(source)
    model.graph.input[1].name = "global_mask"
    for each in model.graph.node:
        each.input[:] = ["global_mask" if name == "mask" else name for name in each.input]
    renamed = tmp_path / "renamed.onnx"
    onnx.save(model, renamed)
    assert Variation.of(load(renamed), {}).masks == {}
    assert list(Variation.of(load(renamed), {}, ["global_mask"]).masks) == ["global_mask"]
    with pytest.raises(Mistake, match="--mask none: no input of shape"):
        Variation.of(load(renamed), {}, ["none"])


def test_inputs_of_one_length_need_one_name(tmp_path: Path) -> None:
    """As torch names them with dynamic_axes={"tokens": [0, 1], "mask": [0, 1]}."""
    model = onnx.load(encoder(tmp_path / "source") / "1" / "model.onnx")
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "mask_length"
    path = tmp_path / "apart.onnx"
    onnx.save(model, path)
    with pytest.raises(PaddingError, match="requests run only if length, mask_length are equal"):
        proved(path)


def test_a_graph_of_one_length_is_refused(tmp_path: Path) -> None:
    path = graph(
        tmp_path / "m.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        takes=("batch", 2),
        gives=("batch", 4),
        constants=[weights(2, 4)],
    )
    with pytest.raises(PaddingError, match="no input has an open dimension beside the batch axis"):
        proved(path)


def test_lengths_of_two_names_vary_apart(tmp_path: Path) -> None:
    """An encoder and a decoder side: each output follows its own input."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Neg", ["source"], ["left"]), helper.make_node("Abs", ["target"], ["right"])],
            "two",
            [
                helper.make_tensor_value_info("source", TensorProto.FLOAT, ["batch", "long"]),
                helper.make_tensor_value_info("target", TensorProto.FLOAT, ["batch", "short"]),
            ],
            [
                helper.make_tensor_value_info("left", TensorProto.FLOAT, ["batch", "long"]),
                helper.make_tensor_value_info("right", TensorProto.FLOAT, ["batch", "short"]),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "two.onnx")
    assert proved(tmp_path / "two.onnx").parameters == {
        "pad": "source[1]=0, target[1]=0",
        "cut": "left[1]=source[1], right[1]=target[1]",
    }
