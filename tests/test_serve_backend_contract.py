"""The drop-in backend refuses a graph that its configuration does not fit, in the C++ backend's words."""

from dataclasses import dataclass
from typing import Any

import contract
import pytest


@dataclass(frozen=True)
class Node:
    name: str
    shape: list[int | str | None]
    type: str = "tensor(float)"


def config(**changes: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    } | changes


INPUTS = [Node("x", ["batch", 3])]
OUTPUTS = [Node("y", ["batch", 2])]


def refusal(changes: dict[str, Any], inputs: list[Node] = INPUTS, outputs: list[Node] = OUTPUTS) -> str:
    with pytest.raises(contract.ContractError) as refused:
        contract.check(config(**changes), inputs, outputs)
    return str(refused.value)


def test_accepts_what_fits() -> None:
    contract.check(config(), INPUTS, [*OUTPUTS, Node("unused", ["batch"])])


def test_input_dims_may_narrow_a_dynamic_dimension() -> None:
    contract.check(config(), [Node("x", ["batch", "width"])], OUTPUTS)


def test_output_dims_must_be_exact() -> None:
    said = refusal({}, outputs=[Node("y", ["batch", "width"])])
    assert said.startswith(
        "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,-1]) but the model configuration specifies "
        "2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,2])"
    )
    assert said.endswith("Write dims: [ -1 ].")


def test_number_of_inputs() -> None:
    said = refusal({}, inputs=[*INPUTS, Node("mask", ["batch", 3])])
    assert said.startswith("unable to load model 'm', configuration expects 1 inputs, model provides 2.")
    assert "mask, x" in said


def test_unknown_names() -> None:
    assert refusal({}, inputs=[Node("z", ["batch", 3])]).startswith(
        "unexpected inference input 'x', allowed inputs are: z."
    )
    assert refusal({}, outputs=[Node("z", ["batch", 2])]).startswith(
        "unexpected inference output 'y', allowed outputs are: z."
    )


def test_data_type() -> None:
    assert refusal({}, inputs=[Node("x", ["batch", 3], "tensor(int64)")]).startswith(
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'x', model provides TYPE_INT64."
    )


def test_fixed_batch_axis() -> None:
    said = refusal({}, inputs=[Node("x", [1, 3])])
    assert said.startswith(
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the "
        "first dimension must be -1; but shape expected by the model is [1,3]."
    )


def test_without_batching_the_full_shape_counts() -> None:
    contract.check(config(max_batch_size=0), [Node("x", [3])], [Node("y", [2])])
    said = refusal({"max_batch_size": 0})
    assert "the model expects 2 dimensions (shape [-1,3])" in said
    assert "specifies 1 dimensions (shape [3])" in said


def test_scalar() -> None:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [1]}
    contract.check(config(max_batch_size=0, input=[tensor]), [Node("x", [])], [Node("y", [2])])
    said = refusal({"max_batch_size": 0}, inputs=[Node("x", [])])
    assert "scalar tensor 'x', should only provide 1 in the model configuration" in said


def test_reshape_counts_instead_of_dims() -> None:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [3], "reshape": {"shape": [1, 3]}}
    contract.check(config(input=[tensor]), [Node("x", ["batch", 1, 3])], OUTPUTS)


def test_optional_input_with_batching() -> None:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [3], "optional": True}
    assert "optional input 'x' is not supported for models that support batching" in refusal({"input": [tensor]})


def test_ragged_is_refused_and_says_what_to_do() -> None:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}
    assert "Pad in the client" in refusal({"input": [tensor]})
