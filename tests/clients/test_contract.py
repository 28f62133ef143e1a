"""The check of arrays against a model's configuration, before anything is sent."""

from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from grpc_server import GrpcServer, outputs
from tritonclient.grpc import model_config_pb2, service_pb2

from clients import Model
from clients._contract import Metadata
from clients.errors import InvalidInputError, ServerFailureError

PAIR = """
name: "pair" max_batch_size: 4
input [ { name: "a" data_type: TYPE_FP32 dims: [ 2, -1 ] }, { name: "b" data_type: TYPE_STRING dims: [ 1 ] } ]
input { name: "c" data_type: TYPE_UINT8 dims: [ 1 ] optional: true allow_ragged_batch: true }
output [ { name: "y" data_type: TYPE_FP64 dims: [ 3, 5 ] }, { name: "z" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 2 gpus: [ 0, 1 ] }, { count: 1 } ]
"""
TEXTS = service_pb2.ModelConfigResponse(
    config=model_config_pb2.ModelConfig(
        name="m",
        max_batch_size=4,
        input=[{"name": "b", "data_type": "TYPE_STRING", "dims": [1]}],
        output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    )
)
A, B, C = np.ones((3, 2, 7), np.float32), np.array([["x"], ["y"], ["z"]]), np.ones((3, 1), np.uint8)


def metadata(text: str = PAIR, **options: Any) -> Metadata:
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return Metadata.of(json_format.MessageToDict(config, preserving_proto_field_name=True), **options)


def test_arrays_get_the_names_of_the_configuration() -> None:
    checked = metadata().check([A, B, C]).arrays
    assert list(checked) == ["a", "b", "c"]
    assert checked["b"].dtype == np.object_
    assert checked["b"].tolist() == [[b"x"], [b"y"], [b"z"]]
    # By name the order does not matter, and what is optional may be missing.
    assert list(metadata().check([{"b": B, "a": A}]).arrays) == ["a", "b"]


@pytest.mark.parametrize("kind", ["U2", "S2"])
def test_texts_are_sent_as_texts_each_time(answering: GrpcServer, kind: str) -> None:
    sent = list[bytes]()

    def take(request: Any) -> Any:
        sent.append(request.raw_input_contents[0])
        return outputs(("y", np.ones((2, 1), np.float32)))

    answering.config, answering.infer = TEXTS, take
    with Model("m", url=answering.url, transport="grpc") as model:
        for _ in range(2):
            assert model.predict(np.array([["ab"], ["c"]], kind)).tolist() == [[1], [1]]
    assert sent == [b"\2\0\0\0ab\1\0\0\0c"] * 2


def test_arrays_like_those_that_fitted_pass_and_others_are_still_checked() -> None:
    text = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } input { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }'
    model = metadata(f'name: "m" max_batch_size: 4 {text}')
    one = np.ones((2, 1), np.float32)
    for width in range(1, 400):  # more than are remembered
        wide = np.full((2, width), width, np.float32)
        for arrays in ([wide, one], [wide + 1, one + 1]):
            checked = model.check(arrays).arrays
            assert list(checked) == ["x", "y"]
            assert checked["x"] is arrays[0]
            assert checked["y"] is arrays[1]
    for wrong in (
        [one.astype(np.float64), one],
        [one.astype(">f4"), one],
        [one, wide],
        [one[:1], one],
        [one[None], one],
        [one[:0], one[:0]],
        [one],
    ):
        with pytest.raises(InvalidInputError):
            model.check(wrong)
    assert model == metadata(f'name: "m" max_batch_size: 4 {text}')


def test_arrays_that_do_not_fit_are_told(golden: Any) -> None:
    """tests/golden/client_arrays.txt"""
    wrong: dict[str, list[Any]] = {
        "two arrays for three inputs": [A, B],
        "unknown names": [{"a": A, "d": B}],
        "a number among texts": [A, np.array([["x"], [1], [None]], dtype=np.object_), C],
        "another dtype": [A.astype(np.float64), B, C],
        "no texts": [A, np.ones((3, 1)), C],
        "another shape": [A[:, :1], B, C],
        "no batch axis": [A[0], B, C],
        "not as many rows": [A, B[:2], C],
        "too many rows": [np.ones((5, 2, 7), np.float32), np.full((5, 1), "x"), np.ones((5, 1), np.uint8)],
        "no rows": [A[:0], B[:0], C[:0]],
        "half of a character": [A, np.array([["x"], ["a\ud800b"], ["z"]]), C],
    }
    lines = []
    for name, arrays in wrong.items():
        with pytest.raises(InvalidInputError) as raised:
            metadata().check(arrays)
        lines.append(f"{name}\n    {raised.value}")
    golden("client_arrays", "\n".join(lines))


Y, Z = np.ones((1, 3, 5)), np.full((1, 1), b"z", np.object_)


def test_an_answer_that_differs_from_the_contract_is_the_models_fault(golden: Any) -> None:
    """tests/golden/client_answers.txt"""
    model = metadata()
    assert model.answer({"z": Z, "y": Y}, 1)[0] is Y
    wrong: dict[str, dict[str, Any]] = {
        "an output is missing": {"y": Y},
        "one more": {"y": Y, "z": Z, "a": Y},
        "another one": {"y": Y, "a": Z},
        "another dtype": {"y": Y.astype(np.float32), "z": Z},
        "another shape": {"y": Y[:, :2], "z": Z},
        "another number of axes": {"y": Y[0], "z": Z},
        "another number of rows": {"y": Y.repeat(2, axis=0), "z": Z.repeat(2, axis=0)},
    }
    lines = []
    for name, answer in wrong.items():
        with pytest.raises(ServerFailureError) as raised:
            model.answer(answer, 1)
        lines.append(f"{name}\n    {raised.value}")
    golden("client_answers", "\n".join(lines))
    more = wrong["another number of rows"]
    assert model.answer(more, None)[0] is more["y"]
    assert metadata(rows_may_differ=True).answer(more, 1)[0] is more["y"]


@pytest.mark.parametrize("sequence_id", ["nine chars", "ä" * 5])
def test_a_long_text_is_no_id_for_a_model_that_takes_numbers(sequence_id: str) -> None:
    """It ends the server."""
    control = "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }"
    text = f'name: "m" max_batch_size: 4 sequence_batching {{ control_input {{ name: "ID" {control} }} }}'
    model = metadata(text)
    with pytest.raises(InvalidInputError, match="would end the server"):
        model.check_sequence_id(sequence_id)
    model.check_sequence_id("8 chars.")
    metadata(text.replace("UINT64", "STRING")).check_sequence_id(sequence_id)


def test_a_datatype_that_this_client_does_not_know_is_refused() -> None:
    config = {"name": "m", "input": [{"name": "x", "data_type": 99, "dims": [1]}]}
    with pytest.raises(InvalidInputError, match='"x" has the datatype 99, which this client has no dtype for'):
        Metadata.of(config)
