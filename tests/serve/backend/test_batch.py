"""Requests are joined into a batch, and outputs are split."""

from typing import Any

import numpy as np
import pytest
from backend_inputs import Node, config, tensor
from gather import Gather, GatherError
from hypothesis import given
from hypothesis import strategies as st
from scatter import Scatter, ScatterError, by_rows, by_shape

ENDS = {"kind": "BATCH_ACCUMULATED_ELEMENT_COUNT", "target_name": ["ends"], "data_type": "TYPE_FP32"}
RAGGED = config(input=[tensor("x", [-1], allow_ragged_batch=True)], batch_input=[ENDS | {"source_input": ["x"]}])
SHAPES = [(1, 3), (2, 2), (1, 5)]


def gather(*inputs: Node) -> Gather:
    return Gather(config(input=[tensor(node.name, []) for node in inputs]), inputs)


@given(batches=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4))
def test_requests_are_joined_in_order_and_split_again(batches: list[list[int]]) -> None:
    """Of several batches in a row, since a buffer is used again; every value is different."""
    joiner = gather(Node("x", ["b", 3]), Node("n", ["b"]), Node("t", ["b"], "tensor(string)"))
    values = iter(range(10_000))
    for sizes in batches:
        numbers = [np.array([next(values) for _ in range(rows)], dtype=np.int64) for rows in sizes]
        requests = [{"n": n, "x": np.stack([n, -n, 2 * n], 1), "t": n.astype(str).astype(object)} for n in numbers]
        joined = joiner(requests)
        for name, array in joined.items():
            np.testing.assert_array_equal(array, np.concatenate([request[name] for request in requests]))
            for part, request in zip(by_rows(name, array, sizes), requests, strict=True):
                np.testing.assert_array_equal(part, request[name])
                assert part.flags.c_contiguous
                assert not part.size or np.shares_memory(part, array)


def test_one_request_is_passed_through_without_a_copy() -> None:
    only = {"x": np.arange(6).reshape(2, 3)}
    assert gather(Node("x", ["b", 3]))([only])["x"] is only["x"]
    alone = Gather(RAGGED, [Node("x", ["n"]), Node("ends", ["requests"])])([only])
    assert np.shares_memory(alone["x"], only["x"])


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="dimension"):
        gather(Node("x", ["b", 3]))([{"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))}])


def test_ragged_requests_are_joined_end_to_end() -> None:
    requests = [{"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)} for shape in SHAPES]
    feed = Gather(RAGGED, [Node("x", ["n"]), Node("ends", ["requests"])])(requests)
    assert feed["x"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert feed["ends"].tolist() == [3, 7, 12]
    assert feed["ends"].dtype == np.float32


def test_a_scalar_input_takes_one_value() -> None:
    joiner = gather(Node("x", []))
    assert joiner([{"x": np.array([[7.0]])}])["x"].shape == ()
    with pytest.raises(GatherError, match="'x' is a scalar in the graph, and the run has 2 values"):
        joiner([{"x": np.array([[7.0]])}, {"x": np.array([[8.0]])}])


def test_a_scalar_output_takes_the_dims_of_the_configuration() -> None:
    def scatter(max_batch_size: int, rows: int) -> Any:
        made = config(max_batch_size=max_batch_size, output=[tensor("y", [1, 1])])
        return Scatter(made)([np.array(3.0)], [{"x": np.zeros((rows, 2))}])[0][0].tolist()

    assert scatter(0, 5) == scatter(8, 1) == [[3.0]]
    with pytest.raises(ScatterError, match="expected batch size of 2"):
        scatter(8, 2)
    with pytest.raises(ScatterError, match="max_batch_size: 0"):
        by_rows("y", np.array(1.0), [1])


def test_scatter_with_the_shape_of_an_input() -> None:
    """Each target of one batch_output has its own dims; the C++ backend uses those of the first for all."""
    entry = {"target_name": ["y", "z"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["x"]}
    scatter = Scatter(config(output=[tensor("y", [-1, 8]), tensor("z", [-1])], batch_output=[entry]))
    y, z = np.arange(96).reshape(12, 8), np.arange(12)
    answers = scatter([y, z], [{"x": np.zeros(shape)} for shape in SHAPES])
    ends = np.cumsum([rows * length for rows, length in SHAPES])
    for (start, end), shape, answer in zip(zip([0, *ends], ends, strict=False), SHAPES, answers, strict=True):
        np.testing.assert_array_equal(answer[0], y[start:end].reshape(*shape, 8))
        np.testing.assert_array_equal(answer[1], z[start:end].reshape(shape))


@pytest.mark.parametrize("more", [-1, 1])
def test_too_few_and_too_many_values_are_named(more: int) -> None:
    rows, elements = 3 + more, 12 + more
    with pytest.raises(ScatterError, match=rf"'y' .* expected batch size of 3, model returned shape \[{rows}, 1\]"):
        by_rows("y", np.zeros((rows, 1)), [1, 2])
    with pytest.raises(
        ScatterError, match=rf"are due 12 elements \(shapes \[1,3\], \[2,2\], \[1,5\]\).*returned {elements} "
    ):
        by_shape("y", np.zeros(elements), [-1, -1], SHAPES)
