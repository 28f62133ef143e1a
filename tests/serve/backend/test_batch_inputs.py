"""Batch inputs without a server: their values, their types, and values that a type cannot hold."""

import numpy as np
import pytest
from batch_inputs import KINDS, BatchInput, BatchInputError, batch_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import KINDS as TENSORS

from tests.serve.backend.test_ragged import expected

SHAPES = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.tuples(st.integers(1, 4), *[st.integers(0, 50)] * rank), min_size=1, max_size=8)
)


def batch_input(kind: str, data_type: str = "TYPE_INT32") -> BatchInput:
    return BatchInput(target="t", source="x", kind=kind, data_type=data_type)


@settings(max_examples=40, derandomize=True)
@given(shapes=SHAPES, types=st.sampled_from([("TYPE_INT32", np.int32), ("TYPE_FP32", np.float32)]))
def test_all_kinds_equal_a_plain_count(shapes: list[tuple[int, ...]], types: tuple[str, type]) -> None:
    assert {*TENSORS.values()} == {*KINDS}
    (data_type, dtype), wanted = types, expected(shapes)
    for name, kind in TENSORS.items():
        made = batch_input(kind, data_type)
        tensor = made.tensor(shapes)
        assert (tensor.ndim, tensor.dtype) == (made.rank, np.dtype(dtype))
        if name == "LONGEST":
            assert tensor.tolist() == [0] * wanted[name][0]  # where the C++ backend gives undefined values
        else:
            assert tensor.reshape(-1).tolist() == wanted[name]


def test_counts_that_a_type_cannot_hold_are_refused() -> None:
    kind = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    fits, too_many = [(1, 2**24)], [(1, 2**24), (1, 1)]
    assert batch_input(kind, "TYPE_FP32").tensor(fits).tolist() == [2**24]
    assert batch_input(kind, "TYPE_INT32").tensor(too_many).tolist() == [2**24, 2**24 + 1]
    with pytest.raises(BatchInputError, match=r"would hold 16777217, and TYPE_FP32 is exact only up to 16777216"):
        batch_input(kind, "TYPE_FP32").tensor(too_many)
    with pytest.raises(BatchInputError, match="TYPE_INT32 is exact only up to 2147483647"):
        batch_input("BATCH_ELEMENT_COUNT").tensor([(2, 2**30)])


def test_every_target_of_an_entry_is_one_batch_input() -> None:
    entry = {"kind": "BATCH_ELEMENT_COUNT", "target_name": ["a", "b"], "data_type": "TYPE_INT32", "source_input": ["x"]}
    assert [each.target for each in batch_inputs({"batch_input": [entry]})] == ["a", "b"]
    assert batch_inputs({}) == []
