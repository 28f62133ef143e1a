"""The bytes of requests and tensors, against protobuf's own writer and reader."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from clients import wire
from clients.terms import Terms


@pytest.mark.parametrize(("longest_s", "expected"), [(math.inf, 1_500_000), (2, 1_500_000), (1, 0), (0, 0)])
def test_the_request_carries_the_deadline_if_the_server_acts_on_it(longest_s: float, expected: int) -> None:
    request = ModelInferRequest.FromString(Terms(timeout_s=1.5).encoded(longest_server_deadline_s=longest_s))
    assert request.parameters["timeout"].int64_param == expected
    assert Terms().encoded(longest_server_deadline_s=longest_s) == b""


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
