"""The drop-in backend refuses a configuration that does not fit the graph, in the C++ backend's words."""

from collections.abc import Callable, Sequence
from typing import Any

import contract
from backend_inputs import Node, config, refusals, tensor

X, Y = tensor("x", [3]), tensor("y", [2])
INPUTS, OUTPUTS = [Node("x", ["batch", 3])], [Node("y", ["batch", 2])]
RAGGED = tensor("x", [-1], "INT32", allow_ragged_batch=True)
FLAT = [Node("x", ["n"], "tensor(int32)"), Node("ends", ["requests"], "tensor(int32)")]
OPTIONAL = tensor("z", [1], optional=True)


def check(
    changes: dict[str, Any],
    inputs: list[Node] = INPUTS,
    outputs: list[Node] = OUTPUTS,
    initializers: Sequence[Node] = (),
) -> None:
    contract.check(config(**({"input": [X], "output": [Y]} | changes)), inputs, outputs, initializers)


def ragged(**changes: Any) -> dict[str, Any]:
    entry = {"kind": "BATCH_ACCUMULATED_ELEMENT_COUNT", "target_name": ["ends"], "data_type": "TYPE_INT32"}
    return {"input": [RAGGED], "batch_input": [entry | {"source_input": ["x"]} | changes]}


def scattered(dims: list[int]) -> dict[str, Any]:
    """A ragged model whose output has the shape of its input."""
    return ragged() | {"output": [tensor("y", dims)], "batch_output": [{"target_name": ["y"], "source_input": ["x"]}]}


def masked(name: str) -> dict[str, Any]:
    values = {"pad": "x[1]=0", "pad_mask": f"{name}=x[1]"}
    parameters = {key: {"string_value": value} for key, value in values.items()}
    return {"input": [tensor("x", [-1], allow_ragged_batch=True)], "parameters": parameters}


ROWS, MASK = Node("x", ["batch", "length"]), Node("mask", ["batch", "length"], "tensor(int64)")


def control(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": f"CONTROL_SEQUENCE_{kind}", "data_type": "TYPE_INVALID", "int32_false_true": []} | changes


SEQUENCE = {
    "sequence_batching": {
        "control_input": [
            {"name": "START", "control": [control("START", int32_false_true=[0, 1])]},
            {"name": "ID", "control": [control("CORRID", data_type="TYPE_UINT64")]},
        ]
    }
}
START, ID = Node("START", ["b", 1], "tensor(int32)"), Node("ID", ["b", 1], "tensor(uint64)")
STATEFUL = {
    "sequence_batching": {
        "state": [{"input_name": "before", "output_name": "after", "data_type": "TYPE_FP32", "dims": [1]}]
    }
}
BEFORE, AFTER = Node("before", ["b", 1]), Node("after", ["b", 1])


def with_state(before: Node = BEFORE, after: Node = AFTER) -> tuple[Any, ...]:
    return STATEFUL, [*INPUTS, before], [*OUTPUTS, after]


def test_accepts_what_fits() -> None:
    """Dims may be narrower than the graph's, outputs fewer, and a reshape counts instead of dims."""
    check({}, INPUTS, [*OUTPUTS, Node("unused", ["batch"])])
    check({}, [Node("x", ["batch", "width"])])
    check({"max_batch_size": 0}, [Node("x", [3])], [Node("y", [2])])
    check({"max_batch_size": 0, "input": [tensor("x", [1])]}, [Node("x", [])], [Node("y", [2])])
    check({"input": [X | {"reshape": {"shape": [1, 3]}}]}, [Node("x", ["batch", 1, 3])])
    whole = {"max_batch_size": 0, "output": [tensor("y", [-1, 2])], "input": [tensor("x", [-1, 3]), OPTIONAL]}
    check(whole, initializers=[Node("z", [1])])
    check(ragged(), FLAT)
    check(scattered([-1]), FLAT, [Node("y", ["n"])])
    check(masked("mask"), [ROWS, MASK])
    check(SEQUENCE, [*INPUTS, START, ID])
    check(*with_state())


REFUSED: dict[str, tuple[Any, ...]] = {
    "the graph has one input more": ({}, [*INPUTS, Node("mask", ["batch", 3])]),
    "an input of another name": ({}, [Node("z", ["batch", 3])]),
    "an output of another name": ({}, INPUTS, [Node("z", ["batch", 2])]),
    "a name that is declared twice": ({"output": [Y, Y]},),
    "another data type": ({}, [Node("x", ["batch", 3], "tensor(int64)")]),
    "a data type that does not exist": ({"input": [tensor("x", [3], "INVALID")]},),
    "output dims that are not the graph's": ({}, INPUTS, [Node("y", ["batch", "width"])]),
    "a fixed batch axis": ({}, [Node("x", [1, 3])]),
    "without batching the full shape counts": ({"max_batch_size": 0},),
    "a scalar has one value": ({"max_batch_size": 0}, [Node("x", [])]),
    "an optional input with batching": ({"input": [X, OPTIONAL]},),
    "an optional input without a default in the graph": (
        {"max_batch_size": 0, "input": [tensor("x", [-1, 3]), OPTIONAL], "output": [tensor("y", [-1, 2])]},
    ),
    "an input with a default that is required": (
        {"max_batch_size": 0, "output": [tensor("y", [-1, 2])], "input": [tensor("x", [-1, 3]), tensor("z", [1])]},
        [*INPUTS, Node("mask", [1])],
        OUTPUTS,
        [Node("z", [1])],
    ),
    **{
        f"{kind} is no tensor": ({}, INPUTS, [*OUTPUTS, Node("z", [], kind)])
        for kind in ("seq(tensor(float))", "map(string,tensor(float))", "sparse_tensor(float)")
    },
    "a ragged input of rank 2 in the graph": (ragged(), [Node("x", ["n", 3], "tensor(int32)"), FLAT[1]]),
    "a ragged input of fixed size in the graph": (ragged(), [Node("x", [7], "tensor(int32)"), FLAT[1]]),
    "a ragged input that is a scalar in the graph": (ragged(), [Node("x", [], "tensor(int32)"), FLAT[1]]),
    "a ragged input that is optional": (
        {"max_batch_size": 0, "input": [RAGGED | {"optional": True}]},
        [],
        OUTPUTS,
        [FLAT[0]],
    ),
    "a batch input counts once, however many targets": (
        ragged(target_name=["ends", "too"]),
        [*FLAT, Node("too", ["requests"], "tensor(int32)")],
    ),
    "a batch input of another type": (ragged(), [FLAT[0], Node("ends", ["n"], "tensor(int64)")]),
    "a batch input of another rank": (ragged(), [FLAT[0], Node("ends", ["n", 1], "tensor(int32)")]),
    "an item shape of rank 1": (ragged(kind="BATCH_ITEM_SHAPE"), FLAT),
    "a batch input that is not in the graph": (ragged(target_name=["end"]), FLAT),
    "a batch input with the name of an input": (ragged(target_name=["x"]), FLAT),
    "a batch input without a target": (ragged(target_name=[]), FLAT),
    "a batch output with more dims than its source": (scattered([2, -1]), FLAT),
    "a mask that pad_mask does not name": (masked("mask") | {"parameters": {}}, [ROWS, MASK]),
    "a mask that is not in the graph": (masked("none"), [ROWS, MASK]),
    "the graph has more inputs than controls": (SEQUENCE, [*INPUTS, START, ID, Node("z", ["b"])]),
    "a control that is not in the graph": (SEQUENCE, [*INPUTS, Node("BEGIN", ["b", 1]), ID]),
    "a control of another size": (SEQUENCE, [*INPUTS, Node("START", ["b", 2], "tensor(int32)"), ID]),
    "a control of another type": (SEQUENCE, [*INPUTS, Node("START", ["b", 1]), ID]),
    "the graph lacks a state's input": (STATEFUL, INPUTS, [*OUTPUTS, AFTER]),
    "a state's input of another name": with_state(before=Node("other", ["b", 1])),
    "a state's output of another name": with_state(after=Node("other", ["b", 1])),
    "a state's input of another size": with_state(before=Node("before", ["b", 2])),
    "a state's output of another size": with_state(after=Node("after", ["b", 2])),
    "a state's input of another type": with_state(before=Node("before", ["b", 1], "tensor(int64)")),
    "a state's output of another type": with_state(after=Node("after", ["b", 1], "tensor(int64)")),
}


def test_refuses_what_does_not_fit(golden: Callable[..., None]) -> None:
    golden("backend_contract", refusals(check, REFUSED))
