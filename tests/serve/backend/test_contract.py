"""The drop-in backend refuses a configuration that does not fit the graph, in the C++ backend's words."""

import re
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
    message = refusal({}, outputs=[Node("y", ["batch", "width"])])
    assert message.startswith(
        "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,-1]) but the model configuration specifies "
        "2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,2])"
    )
    assert message.endswith("Write dims: [ -1 ].")


def test_number_of_inputs() -> None:
    message = refusal({}, inputs=[*INPUTS, Node("mask", ["batch", 3])])
    assert message.startswith("unable to load model 'm', configuration expects 1 inputs, model provides 2.")
    assert "mask, x" in message


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
    message = refusal({}, inputs=[Node("x", [1, 3])])
    assert message.startswith(
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the "
        "first dimension must be -1; but shape expected by the model is [1,3]."
    )


def test_without_batching_the_full_shape_counts() -> None:
    contract.check(config(max_batch_size=0), [Node("x", [3])], [Node("y", [2])])
    message = refusal({"max_batch_size": 0})
    assert "the model expects 2 dimensions (shape [-1,3])" in message
    assert "specifies 1 dimensions (shape [3])" in message


def test_scalar() -> None:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [1]}
    contract.check(config(max_batch_size=0, input=[tensor]), [Node("x", [])], [Node("y", [2])])
    message = refusal({"max_batch_size": 0}, inputs=[Node("x", [])])
    assert "scalar tensor 'x', should only provide 1 in the model configuration" in message


def test_reshape_counts_instead_of_dims() -> None:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [3], "reshape": {"shape": [1, 3]}}
    contract.check(config(input=[tensor]), [Node("x", ["batch", 1, 3])], OUTPUTS)


def test_optional_input_with_batching() -> None:
    tensor = {"name": "z", "data_type": "TYPE_FP32", "dims": [3], "optional": True}
    message = refusal({"input": [*config()["input"], tensor]})
    assert message.startswith(
        "unable to load model 'm', optional input 'z' is not supported for models that support batching"
    )


RAGGED = {"name": "x", "data_type": "TYPE_INT32", "dims": [-1], "allow_ragged_batch": True}
ENDS = {
    "kind": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "target_name": ["ends"],
    "data_type": "TYPE_INT32",
    "source_input": ["x"],
}
FLAT = [Node("x", ["n"], "tensor(int32)"), Node("ends", ["requests"], "tensor(int32)")]


def ragged(**changes: Any) -> dict[str, Any]:
    return {"input": [RAGGED], "batch_input": [ENDS | changes]}


def test_ragged_with_batch_inputs() -> None:
    contract.check(config(**ragged()), FLAT, OUTPUTS)


@pytest.mark.parametrize("shape", [["n", 3], [7], []])
def test_a_ragged_input_is_flat_in_the_graph(shape: list[int | str | None]) -> None:
    shown = "[" + ",".join("-1" if isinstance(dim, str) else str(dim) for dim in shape) + "]"
    assert refusal(ragged(), [Node("x", shape, "tensor(int32)"), FLAT[1]]).startswith(
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'x', "
        f"model provides {shown}."
    )


def test_a_ragged_input_is_not_optional() -> None:
    tensor = RAGGED | {"optional": True}
    assert refusal({"max_batch_size": 0, "input": [tensor]}, []).startswith("unexpected inference input 'x'")
    with pytest.raises(contract.ContractError, match="for ragged input 'x', which is not supported for optional input"):
        contract.check(config(max_batch_size=0, input=[tensor]), [], OUTPUTS, [FLAT[0]])


def test_a_batch_input_counts_once_whatever_its_targets() -> None:
    third = Node("too", ["requests"], "tensor(int32)")
    message = refusal(ragged(target_name=["ends", "too"]), [*FLAT, third])
    assert message.startswith("unable to load model 'm', configuration expects 2 inputs, model provides 3.")
    assert "write one entry for each" in message


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        ({}, Node("ends", ["n"], "tensor(int64)"), "has datatype TYPE_INT32, model provides TYPE_INT64"),
        ({}, Node("ends", ["n", 1], "tensor(int32)"), "has 1 dimension of which the first is open, model provides "),
        ({"kind": "BATCH_ITEM_SHAPE"}, Node("ends", ["n"], "tensor(int32)"), "has 2 dimensions of which the first"),
        ({"target_name": ["end"]}, FLAT[1], "batch input 'end' .* is not an input of the graph"),
        ({"target_name": ["x"]}, FLAT[1], "batch input 'x' .* is declared twice"),
        ({"target_name": []}, FLAT[1], "has no target_name"),
    ],
)
def test_batch_inputs_that_would_fail_at_the_first_request(changes: dict[str, Any], target: Node, message: str) -> None:
    assert re.search(message, refusal(ragged(**changes), [FLAT[0], target]))


def test_a_batch_output_needs_no_equal_dims() -> None:
    entry = {"target_name": ["y"], "source_input": ["x"]}
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}
    contract.check(config(**ragged(), output=[output], batch_output=[entry]), FLAT, [Node("y", ["n"])])
    message = refusal(ragged() | {"output": [output | {"dims": [2, -1]}], "batch_output": [entry]}, FLAT, OUTPUTS)
    assert "batch output 'y' has shape [-1,2,-1] with the batch dimension" in message
    assert "'x', which has only 2 dimensions" in message


def test_names_that_are_declared_twice() -> None:
    tensor = {"name": "y", "data_type": "TYPE_FP32", "dims": [2]}
    assert "output 'y' is declared 2 times" in refusal({"output": [tensor, tensor]})


def test_an_optional_input_has_a_default_in_the_graph() -> None:
    optional = {"name": "z", "data_type": "TYPE_FP32", "dims": [1], "optional": True}
    whole = config(max_batch_size=0)["input"][0] | {"dims": [-1, 3]}
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 2]}
    fits = config(max_batch_size=0, input=[whole, optional], output=[output])
    contract.check(fits, INPUTS, OUTPUTS, [Node("z", [1])])
    with pytest.raises(contract.ContractError, match="unexpected inference input 'z', allowed inputs are: x"):
        contract.check(fits, INPUTS, OUTPUTS)


def test_an_unsupported_data_type() -> None:
    tensor = {"name": "x", "data_type": "TYPE_INVALID", "dims": [3]}
    assert refusal({"input": [tensor]}).startswith("unsupported datatype TYPE_INVALID for input 'x' for model 'm'")


def control(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "data_type": "TYPE_INVALID", "int32_false_true": []} | changes


SEQUENCE = {
    "control_input": [
        {"name": "START", "control": [control("CONTROL_SEQUENCE_START", int32_false_true=[0, 1])]},
        {"name": "ID", "control": [control("CONTROL_SEQUENCE_CORRID", data_type="TYPE_UINT64")]},
    ]
}
CONTROLLED = [*INPUTS, Node("START", ["b", 1], "tensor(int32)"), Node("ID", ["b", 1], "tensor(uint64)")]


def test_sequence_controls_count_as_inputs() -> None:
    contract.check(config(sequence_batching=SEQUENCE), CONTROLLED, OUTPUTS)
    assert "configuration expects 3 inputs, model provides 4" in refusal(
        {"sequence_batching": SEQUENCE}, [*CONTROLLED, Node("z", ["b"])]
    )


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (Node("BEGIN", ["b", 1]), "specified sequence control 'START', but model does not provide that input"),
        (Node("START", ["b", 2], "tensor(int32)"), r"'START' in model has dims \[2\] but dims \[1\] is expected"),
        (Node("START", ["b", 1], "tensor(float)"), "data-type FLOAT but the model configuration .* TYPE_INT32"),
    ],
)
def test_sequence_controls_must_fit(start: Node, message: str) -> None:
    assert re.search(message, refusal({"sequence_batching": SEQUENCE}, [INPUTS[0], start, CONTROLLED[2]]))


STATE = {"input_name": "before", "output_name": "after", "data_type": "TYPE_FP32", "dims": [1]}
STATEFUL = {"sequence_batching": {"state": [STATE]}}


def test_states_count_as_inputs() -> None:
    before, after = Node("before", ["b", 1]), Node("after", ["b", 1])
    contract.check(config(**STATEFUL), [*INPUTS, before], [*OUTPUTS, after])
    assert "expects 2 inputs, model provides 1" in refusal(STATEFUL, INPUTS, [*OUTPUTS, after])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (Node("other", ["b", 1]), Node("after", ["b", 1]), "unexpected inference input 'before'"),
        (Node("before", ["b", 1]), Node("other", ["b", 1]), "unexpected inference output 'after'"),
        (Node("before", ["b", 2]), Node("after", ["b", 1]), r"tensor 'before': the model expects 2 dimensions \(shape"),
        (Node("before", ["b", 1]), Node("after", ["b", 2]), r"tensor 'after': the model expects 2 dimensions \(shape"),
        (Node("before", ["b", 1], "tensor(int64)"), Node("after", ["b", 1]), "datatype TYPE_FP32 for input 'before'"),
        (Node("before", ["b", 1]), Node("after", ["b", 1], "tensor(int64)"), "datatype TYPE_FP32 for output 'after'"),
    ],
)
def test_states_must_fit(before: Node, after: Node, message: str) -> None:
    assert re.search(message, refusal(STATEFUL, [*INPUTS, before], [*OUTPUTS, after]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("seq(tensor(float))", "SEQUENCE"),
        ("map(string,tensor(float))", "MAP"),
        ("sparse_tensor(float)", "SPARSETENSOR"),
    ],
)
def test_only_tensors_are_served(kind: str, message: str) -> None:
    wanted = f"Unsupported ONNX Type 'ONNX_TYPE_{message}' for I/O 'z', expected 'ONNX_TYPE_TENSOR'."
    assert refusal({}, outputs=[*OUTPUTS, Node("z", [], kind)]).startswith(wanted)
