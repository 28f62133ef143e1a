"""Requests joined into a batch and cut apart again."""

import numpy as np
import pytest
from gather import gather
from scatter import RowsError, scatter


def test_one_request_is_passed_through_without_a_copy() -> None:
    only = {"x": np.arange(6).reshape(2, 3)}
    assert gather([only])["x"] is only["x"]


def test_rows_keep_their_order() -> None:
    first, second = np.full((2, 3), 1.0), np.full((1, 3), 2.0)
    joined = gather([{"x": first, "n": np.array([1, 2])}, {"n": np.array([3]), "x": second}])
    assert joined["x"].tolist() == [[1, 1, 1], [1, 1, 1], [2, 2, 2]]
    assert joined["n"].tolist() == [1, 2, 3]


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="dimension"):
        gather([{"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))}])


def test_each_request_gets_its_rows() -> None:
    output = np.arange(12).reshape(6, 2)
    parts = scatter("y", output, [1, 3, 2])
    assert [part.tolist() for part in parts] == [
        [[0, 1]],
        [[2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]


def test_parts_are_views() -> None:
    output = np.zeros((3, 2))
    for part in scatter("y", output, [1, 2]):
        assert part.base is output
        assert part.flags.c_contiguous


@pytest.mark.parametrize("rows", [2, 4])
def test_too_few_and_too_many_rows_are_named(rows: int) -> None:
    with pytest.raises(RowsError, match=rf"'y' .* expected batch size of 3, model returned shape \[{rows}, 1\]"):
        scatter("y", np.zeros((rows, 1)), [1, 2])


def test_a_scalar_output_cannot_be_split() -> None:
    with pytest.raises(RowsError, match="max_batch_size: 0"):
        scatter("y", np.array(1.0), [1])
