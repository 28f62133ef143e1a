"""The bytes of requests and tensors, against protobuf's own writer and reader."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from clients import InvalidInputError, wire
from clients import protocol as pb
from clients.grpc_body import PREFIX, Body
from clients.terms import Terms


@given(
    st.lists(st.binary(max_size=300), max_size=4),
    st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=5),
    st.integers(0, 9),
)
def test_parts_put_together_are_one_message(tensors: list[bytes], request_id: str, priority: int) -> None:
    head = wire.head("m", "3", [("x", "FP32", (1, 2)), ("y", "BYTES", (1,))])
    terms = Terms(request_id=request_id, priority=priority, parameters={"a": True, "b": 2, "c": 0.5, "d": "x"})
    whole = wire.joined(head + terms.encoded(longest_server_deadline_s=0), [memoryview(tensor) for tensor in tensors])
    request = ModelInferRequest.FromString(whole)
    assert (request.model_name, request.model_version, request.id) == ("m", "3", request_id)
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs] == [
        ("x", "FP32", [1, 2]),
        ("y", "BYTES", [1]),
    ]
    assert list(request.raw_input_contents) == tensors
    assert request.parameters["priority"].uint64_param == priority
    kinds = {name: request.parameters[name].WhichOneof("parameter_choice") for name in "abcd"}
    assert kinds == {"a": "bool_param", "b": "int64_param", "c": "double_param", "d": "string_param"}


@pytest.mark.parametrize(("longest_s", "expected"), [(math.inf, 1_500_000), (2, 1_500_000), (1, 0), (0, 0)])
def test_the_request_carries_the_deadline_if_the_server_acts_on_it(longest_s: float, expected: int) -> None:
    request = ModelInferRequest.FromString(Terms(timeout_s=1.5).encoded(longest_server_deadline_s=longest_s))
    assert request.parameters["timeout"].int64_param == expected
    assert Terms().encoded(longest_server_deadline_s=longest_s) == b""


@pytest.mark.parametrize("value", [None, [1], np.float32(1)])
def test_a_parameter_that_no_request_can_carry_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r'parameter "a" is .*a request can carry bool, int, float and str'):
        Terms(parameters={"a": value})


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.binary(max_size=9))
def test_texts_come_back_whatever_follows_them(texts: list[bytes], rest: bytes) -> None:
    array = np.array(texts, dtype=np.object_).reshape(1, -1)
    content = bytes(wire.contents(array))
    assert content == b"".join(struct.pack("<I", len(text)) + text for text in texts)
    assert wire.tensor(content + rest, "BYTES", (1, len(texts))).tolist() == [texts]


def test_arrays_come_back_as_arrays_of_their_own() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2]
    response = ModelInferResponse(raw_output_contents=[bytes(wire.contents(array))])
    response.outputs.add(name="y", datatype="INT16", shape=[3, 2])
    (answer,) = wire.answers(response).values()
    np.testing.assert_array_equal(answer, array)
    answer[:] = 0
    assert bytes(wire.contents(np.zeros((0, 3), np.float32))) == b""


def test_a_large_answer_is_read_in_place() -> None:
    """The last tensor is a view of the message, if that is aligned; tensors before it are copies if they are not."""
    arrays: dict[str, Any] = {"a": np.arange(70_001, dtype=np.uint8), "b": np.arange(20_001, dtype=np.float32)[None]}
    response = pb.ModelInferResponse(model_name="m", id="7", parameters={"p": pb.InferParameter(bool_param=True)})
    for name, array in arrays.items():
        response.outputs.add(name=name, datatype=wire.datatype(array), shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
    content = response.SerializeToString()
    body = Body()
    framed = PREFIX.pack(0, len(content)) + content
    for piece in (framed[:50_000], framed[50_000:]):
        body.add(memoryview(piece))
    whole = body.content()
    parts = wire.parted(memoryview(whole)[PREFIX.size :])
    assert parts
    answers = wire.answers(parts)
    assert list(answers) == ["a", "b"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(answers[name], array)
        assert answers[name].flags.writeable
        assert answers[name].flags.aligned
    assert np.shares_memory(answers["b"], np.frombuffer(whole, np.uint8))


def test_fields_of_other_kinds_and_cut_messages() -> None:
    assert wire.parted(memoryview(b"\x08\x01")) is None
    with pytest.raises(ValueError, match="a field of 9 bytes"):
        wire.parted(memoryview(b"\x0a\x09abc"))
