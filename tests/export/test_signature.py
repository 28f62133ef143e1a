"""The check of a configuration against its graph refuses what the backend refuses, which has rules of its own."""

from typing import Any

import contract
from backend_inputs import Node
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tensor_types import ONNX_TYPES
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.signature import Signature, Tensor, check

TYPES = st.sampled_from(["TYPE_FP32", "TYPE_FP32", "TYPE_FP32", "TYPE_INT32"])
SHAPES = st.one_of(st.lists(st.sampled_from([-1, -1, 1, 2]), max_size=3), st.just([-1, 1]))
CONTROLS = {"a": "START", "b": "END", "c": "READY"}


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelConfig, Signature]:
    """A graph with inputs a, b and c, and a configuration that is right for most of its tensors."""
    size = draw(st.sampled_from([0, 8, 8]))
    graph = {name: Tensor(type=draw(TYPES), shape=_shape(draw, size)) for name in ("a", "b", "c", "y", "after")}
    defaults = {"c"} & {draw(st.sampled_from("abc"))}
    signature = Signature(
        inputs={name: graph[name] for name in sorted({"a", "b", "c"} - defaults)},
        outputs={name: graph[name] for name in ("y", "after")},
        defaults={name: graph[name] for name in defaults},
    )
    written: dict[str, Any] = {"max_batch_size": size, "input": [], "output": [_declared(draw, "y", graph, size)]}
    ways = ["input", "input", "input", "optional", "ragged", "batch_input", "state", "control", "nothing"]
    for name in "abc":
        _declare(
            draw(st.sampled_from(["input"] if name == "a" else ways)), name, _declared(draw, name, graph, size), written
        )
    return json_format.ParseDict(written, ModelConfig()), signature


def _shape(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    shape = draw(SHAPES)
    return (-1, *shape[1:]) if size and shape and draw(st.integers(0, 9)) else tuple(shape)


def _declared(draw: st.DrawFn, name: str, graph: dict[str, Tensor], size: int) -> dict[str, Any]:
    """An input or output; in one of four cases something of it is drawn anew."""
    tensor, other = graph[name], draw(st.sampled_from(["", "", "", "", "", "", "name", "type", "dims"]))
    right = list(tensor.shape[1:] if size else tensor.shape)
    dims = draw(SHAPES) if other == "dims" else right
    declared = {"name": "z" if other == "name" else name, "data_type": draw(TYPES) if other == "type" else tensor.type}
    return declared | ({"dims": dims} if dims else {"dims": [1], "reshape": {"shape": []}})


def _declare(way: str, name: str, tensor: dict[str, Any], config: dict[str, Any]) -> None:
    sequences = {"state": [], "control_input": []}
    if way in ("input", "optional", "ragged"):
        more = {"optional": way == "optional", "allow_ragged_batch": way == "ragged"}
        config["input"].append(tensor | more)
    elif way == "batch_input":
        entry = {"kind": draw_kind(tensor), "target_name": [tensor["name"]], "data_type": tensor["data_type"]}
        config.setdefault("batch_input", []).append(entry | {"source_input": ["a"]})
    elif way == "state":
        state = {"input_name": tensor["name"], "output_name": "after", "data_type": tensor["data_type"]}
        config.setdefault("sequence_batching", sequences)["state"].append(state | {"dims": tensor["dims"]})
    elif way == "control":
        switch = "int32_false_true" if tensor["data_type"] == "TYPE_INT32" else "fp32_false_true"
        control = {"kind": f"CONTROL_SEQUENCE_{CONTROLS[name]}", switch: [0, 1]}
        entry = {"name": tensor["name"], "control": [control]}
        config.setdefault("sequence_batching", sequences)["control_input"].append(entry)


def draw_kind(tensor: dict[str, Any]) -> str:
    return "BATCH_ITEM_SHAPE" if len(tensor["dims"]) > 1 else "BATCH_ELEMENT_COUNT"


def _nodes(tensors: Any) -> list[Node]:
    return [
        Node(name, ["open" if dim < 0 else dim for dim in tensor.shape], ONNX_TYPES[tensor.type])
        for name, tensor in tensors.items()
    ]


@given(cases())
def test_it_says_what_the_backend_says(case: tuple[ModelConfig, Signature]) -> None:
    config, signature = case
    written = {"name": "m", "max_batch_size": 0, "input": [], "parameters": {}}
    written |= json_format.MessageToDict(config, preserving_proto_field_name=True)
    said = ""
    try:
        contract.check(written, *(_nodes(side) for side in (signature.inputs, signature.outputs, signature.defaults)))
    except ValueError as error:
        said = str(error)
    assert (said != "") == (list(check(config, signature)) != []), said
