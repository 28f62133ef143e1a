"""Graphs whose padded answers are wrong for some requests only are refused by the proof of `--variable-length`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.add.__main__ import main
from export.graph.input_values import Range, ranges
from export.graph.padding_axes import PaddingError, Variation
from export.graph.padding_proof import Padding, prove
from export.graph.rounding import roundings
from export.repository import read_config
from triton_batching.terminal import Mistake

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
Constants = Mapping[str, NDArray[np.generic]]
Tensor = tuple[str, int, Sequence[int | str]]
node = helper.make_node


def model_of(nodes: list[onnx.NodeProto], takes: list[Tensor], gives: Tensor, constants: Constants) -> onnx.ModelProto:
    made = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info(*tensor) for tensor in takes],
        [helper.make_tensor_value_info(*gives)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def proved(model: onnx.ModelProto, chosen: Mapping[str, Range] | None = None, **fills: float) -> Padding:
    valid, variation = ranges(model, chosen or {}, {}), Variation.of(model, fills)
    return prove(model, valid, length=16, roundings=roundings(model), variation=variation)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def whole(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


X: Tensor = ("x", FLOAT, ("batch", "length"))
W: Tensor = ("w", FLOAT, ("batch", "other"))
ONE: Tensor = ("y", FLOAT, ("batch", 1))
MEAN = node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1)
LABEL = model_of(
    [
        MEAN,
        node("Mul", ["m", "by"], ["h"]),
        node("Add", ["h", "bias"], ["l"]),
        node("ArgMax", ["l"], ["y"], axis=1, keepdims=0),
    ],
    [X],
    ("y", INT64, ("batch",)),
    {"by": floats(1, -1)[None], "bias": floats(0.9, 0)[None]},
)
MAXIMUM = model_of([node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)], [X], ONE, {})
TOP = model_of([node("TopK", ["x", "k"], ["y", "i"], axis=1)], [X], ONE, {"k": whole(1)})
# The answer is at the first token that is 0, less 1; -1 is the last.
FIRST_PAD = model_of(
    [
        node("Equal", ["ids", "zero"], ["found"]),
        node("Cast", ["found"], ["number"], to=TensorProto.INT32),
        node("ArgMax", ["number"], ["first"], axis=1, keepdims=1),
        node("Sub", ["first", "one"], ["before"]),
        node("Shape", ["ids"], ["length"], start=1, end=2),
        node("Mod", ["before", "length"], ["place"]),
        node("Gather", ["table", "ids"], ["vectors"]),
        node("GatherElements", ["vectors", "place"], ["y"], axis=1),
    ],
    [("ids", INT64, ("batch", "length"))],
    ("y", INT64, ("batch", 1)),
    {"zero": whole(0), "one": whole(1), "table": np.arange(5000, dtype=np.int64)},
)


@pytest.mark.parametrize("model", [LABEL, MAXIMUM, TOP, FIRST_PAD], ids=["label", "maximum", "top", "first pad"])
def test_a_leak_that_few_values_show_is_found(model: onnx.ModelProto) -> None:
    with pytest.raises(PaddingError, match="differs from its answer alone"):
        proved(model)


def test_an_output_of_one_value_is_named() -> None:
    nodes = [MEAN, node("Greater", ["m", "far"], ["g"]), node("Cast", ["g"], ["y"], to=INT64)]
    model = model_of(nodes, [X], ("y", INT64, ("batch", 1)), {"far": floats(1e9)})
    assert proved(model).constant == ("y",)


def test_values_with_which_no_request_runs_are_named() -> None:
    """x times 100 picks a row of 300: x times 10 does not run."""
    nodes = [
        node("Mul", ["x", "hundred"], ["h"]),
        node("Cast", ["h"], ["i"], to=INT64),
        node("Gather", ["table", "i"], ["y"]),
    ]
    constants = {"hundred": floats(100), "table": np.arange(300, dtype=np.float32)}
    found = proved(model_of(nodes, [X], ("y", FLOAT, ("batch", "length")), constants))
    assert found.untried == ("10 times the guessed range", "1000 times the guessed range")


def to_sixteen() -> onnx.ModelProto:
    """y is x, filled to at least 16 elements."""
    nodes = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("Sub", ["least", "length"], ["less"]),
        node("Max", ["less", "zero"], ["more"]),
        node("Concat", ["zero", "zero", "zero", "more"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["y"]),
    ]
    return model_of(nodes, [X], ("y", FLOAT, ("batch", "n")), {"least": whole(16), "zero": whole(0)})


def first_hundred() -> onnx.ModelProto:
    constants = {"begin": whole(0), "end": whole(100), "axis": whole(1)}
    nodes = [node("Slice", ["x", "begin", "end", "axis"], ["y"])]
    return model_of(nodes, [X], ("y", FLOAT, ("batch", "n")), constants)


@pytest.mark.parametrize("model", [to_sixteen(), first_hundred()], ids=["at least 16", "at most 100"])
def test_a_cut_must_hold_for_short_and_long_requests(model: onnx.ModelProto) -> None:
    with pytest.raises(PaddingError, match="so what belongs to a request cannot be cut out"):
        proved(model)


def test_an_output_that_follows_two_lengths_is_refused() -> None:
    model = model_of([node("Concat", ["x", "w"], ["y"], axis=1)], [X, W], ("y", FLOAT, ("batch", "n")), {})
    with pytest.raises(PaddingError, match=r"follows x\[1\] and w\[1\]"):
        proved(model)


def test_a_mask_that_only_the_first_row_gives_is_found_in_a_mixed_batch() -> None:
    """A batch of one length has one mask, and --range mask=1:1 gives every row the same."""
    nodes = [
        node("Slice", ["mask", "zero", "one", "zero"], ["first"]),
        node("Mul", ["x", "first"], ["kept"]),
        node("ReduceSum", ["kept", "one"], ["sum"], keepdims=1),
        node("ReduceSum", ["first", "one"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["y"]),
    ]
    takes = [X, ("mask", FLOAT, ("batch", "length"))]
    model = model_of(nodes, takes, ONE, {"zero": whole(0), "one": whole(1)})
    with pytest.raises(PaddingError, match="in a batch with requests of other lengths"):
        proved(model, {"mask": Range(low=1, high=1, why="your range")})


def doubled_beyond(limit: int) -> onnx.ModelProto:
    nodes = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("Greater", ["length", "limit"], ["long"]),
        node("Add", ["x", "x"], ["twice"]),
        node("Where", ["long", "twice", "x"], ["y"]),
    ]
    return model_of(nodes, [X], ("y", FLOAT, ("batch", "length")), {"limit": whole(limit)})


def test_padding_is_tried_far_beyond_the_usual_length() -> None:
    for limit in (100, 2000):
        with pytest.raises(PaddingError, match="differs from its answer alone"):
            proved(doubled_beyond(limit))
    assert proved(doubled_beyond(10**6)).longest == 2048


def test_a_score_beside_large_numbers_counts() -> None:
    nodes = [
        MEAN,
        node("Mul", ["m", "none"], ["zeros"]),
        node("Add", ["zeros", "corners"], ["box"]),
        node("Mul", ["m", "small"], ["logit"]),
        node("Sigmoid", ["logit"], ["score"]),
        node("Concat", ["box", "score"], ["y"], axis=1),
    ]
    constants = {"none": floats(0, 0)[None], "corners": floats(20, 64000)[None], "small": floats(0.1)}
    with pytest.raises(PaddingError, match=r"of what y\[0, 2\] varies by"):
        proved(model_of(nodes, [X], ("y", FLOAT, ("batch", 3)), constants))


def test_half_precision_is_judged_by_what_its_answers_vary() -> None:
    """A score of 0.5 that varies by 0.005 is all wrong with padding; the same values without a leak are proved."""
    small = {"small": np.array([0.02], dtype=np.float16)}
    takes: Tensor = ("x", HALF, ("batch", "length"))
    rest = [node("Mul", ["m", "small"], ["logit"]), node("Sigmoid", ["logit"], ["y"])]
    with pytest.raises(PaddingError, match="ReduceMean"):
        proved(model_of([MEAN, *rest], [takes], ("y", HALF, ("batch", 1)), small))
    rest[0].input[0] = "x"
    assert proved(model_of(rest, [takes], ("y", HALF, ("batch", "length")), small)).difference.error < 1e-3


def test_one_and_two_elements_are_tried() -> None:
    nodes = [node("Neg", ["x"], ["y"])]
    assert proved(model_of(nodes, [X], ("y", FLOAT, ("batch", "length")), {})).lengths[:3] == (1, 2, 3)


def test_a_maximum_is_padded_with_minus_infinity(tmp_path: Path) -> None:
    onnx.save(MAXIMUM, tmp_path / "maximum.onnx")
    arguments = [str(tmp_path / "maximum.onnx"), "--variable-length", "--repository", str(tmp_path / "models")]
    assert main([*arguments, "--pad-value", "x=-inf"]) == 0
    written = tmp_path / "models" / "maximum" / "config.pbtxt"
    assert read_config(written).parameters["pad"].string_value == "x[1]=-inf"
    assert "The longest batch tried had 2048 elements" in written.read_text()


def test_a_fill_that_no_input_can_hold_is_refused() -> None:
    with pytest.raises(Mistake, match="--pad-value x=nan: NaN is not a value to fill with"):
        proved(MAXIMUM, x=float("nan"))
    for fill in ("-inf", "inf", "nan"):
        with pytest.raises(Mistake, match=f"--pad-value ids={fill}: "):
            proved(FIRST_PAD, ids=float(fill))
    half = model_of([node("Neg", ["x"], ["y"])], [("x", HALF, ("batch", "l"))], ("y", HALF, ("batch", "l")), {})
    with pytest.raises(Mistake, match="holds at most 65504"):
        proved(half, x=1e10)
