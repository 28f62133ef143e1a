"""The proof of a batch axis, the node that a failed proof names, and the rewrite of graphs with fixed rows."""

import re
from pathlib import Path

import numpy as np
import pytest
from added_graphs import INT64, graph, linear, mixing, numbers, texts, tried, weights
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from export.graph.batched import BatchAxisError
from export.graph.culprit import batch_axis
from export.graph.error_measure import SINGLE
from export.graph.input_values import Range, parse_range
from export.graph.layout import Place
from export.graph.layout import reshaped as place_after
from triton_batching.terminal import Mistake


def test_a_dynamic_axis_is_proved_as_it_is(tmp_path: Path) -> None:
    made = tried(linear(tmp_path / "m.onnx"))
    assert made.changes == ()
    assert made.proof.batches == (1, 2, 3, 8, 16)
    assert made.proof.varied
    assert made.proof.largest.error <= made.proof.largest.tolerance == 1e-4


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ReduceMean", "reduces over axis 0, the batch axis"),
        ("Softmax", "normalises over axis 0, the batch axis"),
        ("CumSum", "adds up along axis 0, the batch axis"),
        ("MatMul", "multiplies rows of the batch with one another"),
        ("BatchNormalization", "is in training mode"),
        ("DynamicQuantizeLinear", "uses one scale for the whole batch"),
        ("Gather", "picks rows out of axis 0, the batch axis"),
        ("RandomNormalLike", "draws random numbers"),
    ],
)
def test_the_node_that_mixes_rows_is_named(kind: str, message: str, tmp_path: Path) -> None:
    path = mixing(tmp_path / "m.onnx", kind)
    with pytest.raises(
        BatchAxisError, match=rf'the first axis is not a batch axis.*node "culprit" \({kind}\) {message}'
    ):
        tried(path)


def test_a_reshape_that_no_change_can_mend_is_named(tmp_path: Path) -> None:
    """(rows, 4) -> (2, 2 rows) mixes halves of different rows."""
    nodes = [
        helper.make_node("Reshape", ["x", "halves"], ["h"], name="culprit"),
        helper.make_node("Softmax", ["h"], ["s"], axis=1),
        helper.make_node("Reshape", ["s", "back"], ["y"]),
    ]
    path = graph(
        tmp_path / "m.onnx", nodes, gives=("batch", 4), constants=[numbers("halves", 2, -1), numbers("back", -1, 4)]
    )
    with pytest.raises(BatchAxisError, match=r'node "culprit" \(Reshape\) has the constant shape \[2, -1\]'):
        tried(path)


@pytest.mark.parametrize(
    ("takes", "message"),
    [
        ((), 'input "x" is a scalar'),
        ((5, 4), 'the inputs fix their first axes to different sizes, "x" to 5, "other" to 3'),
    ],
)
def test_inputs_without_a_common_batch_are_named(takes: tuple[int, ...], message: str, tmp_path: Path) -> None:
    other = helper.make_tensor_value_info("other", 1, [3, 4])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Add", ["other", "sum"], ["y"]),
    ]
    with pytest.raises(BatchAxisError, match=message):
        tried(graph(tmp_path / "m.onnx", nodes, takes=takes, gives=(3, 4), others=[other]))


def test_indices_stay_inside_the_table_that_they_look_up(tmp_path: Path) -> None:
    made = tried(texts(tmp_path / "m.onnx"))
    assert made.valid["tokens"] == Range(low=0, high=19, why='an index into "w" of 20 rows')
    assert (made.valid["mask"].low, made.valid["mask"].high) == (0, 1)
    assert made.proof.open_dim == 16


def test_values_that_do_not_run_ask_for_a_range(tmp_path: Path) -> None:
    """The table is computed, so its size is unknown."""
    nodes = [
        helper.make_node("Add", ["w", "w"], ["table"]),
        helper.make_node("Sub", ["x", "nine"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["y"]),
    ]
    path = graph(
        tmp_path / "m.onnx",
        nodes,
        takes=("batch",),
        gives=("batch", 3),
        takes_type=INT64,
        constants=[weights(5, 3), numbers("nine", 9)],
    )
    with pytest.raises(Mistake, match=r"no row of random values runs.*--range NAME=lo:hi"):
        tried(path)
    assert tried(path, ranges=dict([parse_range("x=9:13")])).valid["x"].high == 13


def test_a_length_is_asked_for_where_no_value_helps(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], strides=[160])]
    open_length = ("batch", 1, "time")
    path = graph(tmp_path / "m.onnx", nodes, takes=open_length, gives=open_length, constants=[weights(1, 1, 5000)])
    with pytest.raises(Mistake, match=r"Open dimensions had 16, .* elements\. Give rows of a length that runs with"):
        tried(path)


def test_a_tolerance_is_advised_that_was_tried(tmp_path: Path) -> None:
    path = mixing(tmp_path / "m.onnx", "DynamicQuantizeLinear")
    with pytest.raises(BatchAxisError, match="accept the difference") as refused:
        tried(path, tolerance=1e-3)
    advised = float(re.findall(r"--tolerance (\S+)\.", str(refused.value))[0])
    assert not tried(path, tolerance=advised).proof.largest.exceeds


def test_half_precision_has_the_tolerance_of_its_type(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["wide"], to=1), helper.make_node("MatMul", ["wide", "w"], ["y"])]
    half = graph(tmp_path / "m.onnx", nodes, constants=[weights(4, 3)], takes_type=10)
    assert tried(half).proof.largest.tolerance == 1e-2


def test_rows_that_all_answer_alike_prove_little(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "none"], ["y"])]
    nothing = weights(4)
    nothing.CopyFrom(helper.make_tensor("none", 1, [1], [0.0]))
    assert not tried(graph(tmp_path / "m.onnx", nodes, gives=("batch", 4), constants=[nothing])).proof.varied


def test_samples_take_the_place_of_random_rows(tmp_path: Path) -> None:
    path = texts(tmp_path / "m.onnx")
    rows = np.random.default_rng(0).integers(0, 20, (9, 5))
    np.savez(tmp_path / "rows.npz", tokens=rows, mask=np.ones_like(rows))
    made = tried(path, samples=tmp_path / "rows.npz")
    assert made.valid == {}
    assert made.proof.batches == (1, 2, 3, 8, 9)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4), st.data())
def test_the_batch_is_followed_through_a_reshape(shape: list[int], rows: int, data: st.DataObject) -> None:
    """Merging the batch axis with others and splitting it again gives its old place."""
    axis = data.draw(st.integers(0, len(shape)))
    before = [*shape[:axis], rows, *shape[axis:]]
    place = place_after(Place(axis=axis), before, [int(np.prod(before))], rows)
    assert place == Place(axis=0, ahead=int(np.prod(before[:axis])))
    back = place_after(place, [int(np.prod(before))], before, rows)
    assert back is not None
    ahead = int(np.prod(before[: back.axis])) * back.ahead
    assert ahead == np.prod(before[:axis])
    assert before[back.axis] % rows == 0


@pytest.mark.parametrize(("axis", "interleaved"), [(0, False), (1, False), (1, True)])
def test_the_axis_that_holds_the_rows_is_seen(axis: int, interleaved: bool) -> None:
    rng = np.random.default_rng(2)
    parts = [rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(3)]
    whole = np.concatenate(parts, axis=axis)
    if interleaved:
        whole = np.stack(parts, axis=axis + 1).reshape(whole.shape)
    assert batch_axis(list(parts), whole, SINGLE) == axis
    assert batch_axis(list(parts), whole + 1, SINGLE) is None
