"""Batch inputs without a server: their values, their types, and values that a type cannot hold."""

import numpy as np
import pytest
from batch_inputs import KINDS, BatchInput, BatchInputError, batch_inputs
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import KINDS as TENSORS

from tests.serve.backend.test_ragged import expected

EXAMPLE = [(1, 3), (2, 2), (1, 5)]
SHAPES = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.tuples(st.integers(1, 4), *[st.integers(0, 50)] * rank), min_size=1, max_size=8)
)


def batch_input(kind: str, data_type: str = "TYPE_INT32") -> BatchInput:
    return BatchInput(target="t", source="x", kind=kind, data_type=data_type)


@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_FP32"])
def test_the_documented_example(data_type: str) -> None:
    tensors = {kind: batch_input(kind, data_type).tensor(EXAMPLE) for kind in KINDS}
    assert {kind: tensor.tolist() for kind, tensor in tensors.items()} == {
        "BATCH_ELEMENT_COUNT": [3, 4, 5],
        "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 7, 12],
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 7, 12],
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0] * 5,
        "BATCH_ITEM_SHAPE": [[3], [2], [2], [5]],
        "BATCH_ITEM_SHAPE_FLATTEN": [3, 2, 2, 5],
    }
    assert {tensor.dtype for tensor in tensors.values()} == {
        np.dtype("int32" if data_type == "TYPE_INT32" else "float32")
    }


@given(shapes=SHAPES)
def test_all_kinds_equal_a_plain_count(shapes: list[tuple[int, ...]]) -> None:
    wanted = expected(shapes)
    for name, kind in TENSORS.items():
        tensor = batch_input(kind).tensor(shapes)
        assert tensor.ndim == batch_input(kind).rank
        if name == "LONGEST":
            assert [tensor.size] == wanted[name]
        else:
            assert tensor.reshape(-1).tolist() == wanted[name]


def test_counts_that_a_float_cannot_hold_are_refused() -> None:
    fits, too_many = [(1, 2**24)], [(1, 2**24), (1, 1)]
    kind = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    assert batch_input(kind, "TYPE_FP32").tensor(fits).tolist() == [2**24]
    assert batch_input(kind, "TYPE_INT32").tensor(too_many).tolist() == [2**24, 2**24 + 1]
    with pytest.raises(BatchInputError, match=r"would hold 16777217, and TYPE_FP32 is exact only up to 16777216"):
        batch_input(kind, "TYPE_FP32").tensor(too_many)
    with pytest.raises(BatchInputError, match="TYPE_INT32 is exact only up to 2147483647"):
        batch_input("BATCH_ELEMENT_COUNT").tensor([(2, 2**30)])


def test_every_target_of_an_entry_is_one_batch_input() -> None:
    entry = {"kind": "BATCH_ELEMENT_COUNT", "target_name": ["a", "b"], "data_type": "TYPE_INT32", "source_input": ["x"]}
    assert [batch_input.target for batch_input in batch_inputs({"batch_input": [entry]})] == ["a", "b"]
    assert batch_inputs({}) == []
