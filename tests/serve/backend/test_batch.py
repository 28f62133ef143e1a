"""Requests are joined into a batch, and outputs are split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gather import Gather, GatherError
from hypothesis import given
from hypothesis import strategies as st
from scatter import Scatter, ScatterError, by_rows, by_shape


@dataclass(frozen=True)
class Node:
    name: str
    shape: list[int | str | None]
    type: str = "tensor(float)"


def config(*inputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"name": "m", "max_batch_size": 8, "input": list(inputs), "output": []} | changes


DENSE = Gather(config({"name": "x"}, {"name": "n"}), [Node("x", ["b", 3]), Node("n", ["b"])])


def test_one_request_is_passed_through_without_a_copy() -> None:
    only = {"x": np.arange(6).reshape(2, 3)}
    assert DENSE([only])["x"] is only["x"]


def test_rows_keep_their_order() -> None:
    first, second = np.full((2, 3), 1.0), np.full((1, 3), 2.0)
    joined = DENSE([{"x": first, "n": np.array([1, 2])}, {"n": np.array([3]), "x": second}])
    assert joined["x"].tolist() == [[1, 1, 1], [1, 1, 1], [2, 2, 2]]
    assert joined["n"].tolist() == [1, 2, 3]


def test_texts_are_joined() -> None:
    texts = [{"x": np.array([["a"]], dtype=np.object_)}, {"x": np.array([["bc"], ["d"]], dtype=np.object_)}]
    assert DENSE(texts)["x"].tolist() == [["a"], ["bc"], ["d"]]


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="dimension"):
        DENSE([{"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))}])


@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=8))
def test_a_reused_buffer_holds_only_this_batch(sizes: list[int]) -> None:
    gather = Gather(config({"name": "x"}), [Node("x", ["b", 1])])
    for rows in sizes:
        parts = [np.full((rows, 1), rows), np.full((1, 1), -rows)]
        joined = gather([{"x": part} for part in parts])["x"]
        assert joined.tolist() == [[rows]] * rows + [[-rows]]


RAGGED = config(
    {"name": "x", "allow_ragged_batch": True},
    batch_input=[
        {
            "kind": "BATCH_ACCUMULATED_ELEMENT_COUNT",
            "target_name": ["ends"],
            "data_type": "TYPE_FP32",
            "source_input": ["x"],
        }
    ],
)


def test_ragged_requests_are_joined_end_to_end() -> None:
    gather = Gather(RAGGED, [Node("x", ["n"]), Node("ends", ["requests"])])
    shapes = [(1, 3), (2, 2), (1, 5)]
    requests = [{"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)} for shape in shapes]
    feed = gather(requests)
    assert feed["x"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert feed["ends"].tolist() == [3, 7, 12]
    assert feed["ends"].dtype == np.float32
    alone = gather(requests[1:2])
    assert alone["x"].tolist() == [0, 1, 2, 3]
    assert np.shares_memory(alone["x"], requests[1]["x"])


def test_a_scalar_input_takes_one_value() -> None:
    gather = Gather(config({"name": "x"}), [Node("x", [])])
    assert gather([{"x": np.array([[7.0]])}])["x"].shape == ()
    with pytest.raises(GatherError, match="'x' is a scalar in the graph, and the run has 2 values"):
        gather([{"x": np.array([[7.0]])}, {"x": np.array([[8.0]])}])


def test_each_request_gets_its_rows() -> None:
    output = np.arange(12).reshape(6, 2)
    parts = by_rows("y", output, [1, 3, 2])
    assert [part.tolist() for part in parts] == [
        [[0, 1]],
        [[2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]


def test_parts_are_views() -> None:
    output = np.zeros((3, 2))
    for part in [*by_rows("y", output, [1, 2]), *by_shape("y", output, [-1, 2], [(1, 9), (2, 9)])]:
        assert np.shares_memory(part, output)
        assert part.flags.c_contiguous


@pytest.mark.parametrize("rows", [2, 4])
def test_too_few_and_too_many_rows_are_named(rows: int) -> None:
    with pytest.raises(ScatterError, match=rf"'y' .* expected batch size of 3, model returned shape \[{rows}, 1\]"):
        by_rows("y", np.zeros((rows, 1)), [1, 2])


def test_a_scalar_output_cannot_be_split() -> None:
    with pytest.raises(ScatterError, match="max_batch_size: 0"):
        by_rows("y", np.array(1.0), [1])


def scalar_output(max_batch_size: int) -> Scatter:
    return Scatter(config(max_batch_size=max_batch_size, output=[{"name": "y", "dims": [1, 1]}]))


def test_a_scalar_output_takes_the_dims_of_the_configuration() -> None:
    for max_batch_size, rows in [(0, 5), (8, 1)]:
        answers = scalar_output(max_batch_size)([np.array(3.0)], [{"x": np.zeros((rows, 2))}])
        assert answers[0][0].tolist() == [[3.0]]
    with pytest.raises(ScatterError, match="expected batch size of 2"):
        scalar_output(8)([np.array(3.0)], [{"x": np.zeros((2, 2))}])


SCATTERED = config(
    output=[{"name": "y", "dims": [-1, 8]}, {"name": "z", "dims": [-1]}],
    batch_output=[
        {"target_name": ["y", "z"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["x"]},
    ],
)


def test_scatter_with_the_shape_of_an_input() -> None:
    """Each target of one batch_output has its own dims; the C++ backend uses those of the first for all."""
    requests = [{"x": np.zeros(shape)} for shape in [(1, 3), (2, 2), (1, 5)]]
    answers = Scatter(SCATTERED)([np.arange(96).reshape(12, 8), np.arange(12)], requests)
    assert [[part.shape for part in answer] for answer in answers] == [
        [(1, 3, 8), (1, 3)],
        [(2, 2, 8), (2, 2)],
        [(1, 5, 8), (1, 5)],
    ]
    assert answers[1][1].tolist() == [[3, 4], [5, 6]]
    assert answers[2][0].flat[0] == 7 * 8


@pytest.mark.parametrize("elements", [11, 13])
def test_too_few_and_too_many_elements_are_named(elements: int) -> None:
    with pytest.raises(
        ScatterError, match=rf"are due 12 elements \(shapes \[1,3\], \[2,2\], \[1,5\]\).*returned {elements} "
    ):
        by_shape("y", np.zeros(elements), [-1, -1], [(1, 3), (2, 2), (1, 5)])
