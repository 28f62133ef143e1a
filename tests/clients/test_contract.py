"""The check of arrays against a model's configuration, before anything is sent."""

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from h2_server import H2Server, Peer
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients import Model
from clients import protocol as pb
from clients.contract import Metadata
from clients.errors import InvalidInputError, ServerFailureError
from clients.model import answer

PAIR = """
name: "pair" max_batch_size: 4
input [ { name: "a" data_type: TYPE_FP32 dims: [ 2, -1 ] }, { name: "b" data_type: TYPE_STRING dims: [ 1 ] } ]
input { name: "c" data_type: TYPE_UINT8 dims: [ 1 ] optional: true allow_ragged_batch: true }
output [ { name: "y" data_type: TYPE_FP64 dims: [ 3, 5 ] }, { name: "z" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 2 gpus: [ 0, 1 ] }, { count: 1 } ]
"""
TEXTS = pb.ModelConfig(
    name="m",
    max_batch_size=4,
    input=[{"name": "b", "data_type": "TYPE_STRING", "dims": [1]}],
    output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
)
A, B, C = np.ones((3, 2, 7), np.float32), np.array([["x"], ["y"], ["z"]]), np.ones((3, 1), np.uint8)


def metadata(text: str = PAIR) -> Metadata:
    return Metadata.of(text_format.Parse(text, ModelConfig()))


def test_arrays_get_the_names_of_the_configuration() -> None:
    checked = metadata().check([A, B, C])
    assert list(checked) == ["a", "b", "c"]
    assert checked["b"].dtype == np.object_
    assert checked["b"].tolist() == [[b"x"], [b"y"], [b"z"]]
    # By name the order does not matter, and what is optional may be missing.
    assert list(metadata().check([{"b": B, "a": A}])) == ["a", "b"]


def test_one_value_for_each_row_has_the_shape_that_the_model_gives_it() -> None:
    tensor = 'put { name: "%s" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }\n'
    known = metadata("max_batch_size: 8\n" + "".join(f"{way}{tensor % way}" for way in ("in", "out")))
    for sent in (np.ones(3, np.float32), np.ones((3, 1), np.float32)):
        assert known.check([sent])["in"].shape == (3, 1)
    assert known.outputs[0].own_shape(np.ones((3, 1))).shape == (3,)


@pytest.mark.parametrize("kind", ["U2", "S2"])
def test_texts_are_sent_as_texts_each_time(h2: H2Server, kind: str) -> None:
    sent = list[bytes]()

    def take(peer: Peer, stream: int, body: bytes) -> None:
        sent.append(pb.ModelInferRequest.FromString(body).raw_input_contents[0])
        peer.refuse(stream, 13, "taken")

    h2.config, h2.on_infer = TEXTS, take
    with Model("m", url=h2.url, transport="grpc") as model:
        for call in (model.predict, model.predict, lambda texts: list(model.stream(texts))):
            with pytest.raises(ServerFailureError, match="taken"):
                call(np.array([["ab"], ["c"]], kind))
    assert sent == [b"\2\0\0\0ab\1\0\0\0c"] * 3


def test_arrays_like_those_that_fitted_pass_and_others_are_still_checked() -> None:
    text = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } input { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }'
    model = metadata(f'name: "m" max_batch_size: 4 {text}')
    one = np.ones((2, 1), np.float32)
    for width in range(1, 400):  # more than are remembered
        wide = np.full((2, width), width, np.float32)
        for arrays in ([wide, one], [wide + 1, one + 1]):
            checked = model.check(arrays)
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


def test_an_answer_without_a_declared_output_is_the_models_fault() -> None:
    y = np.ones((1, 3, 5))
    assert answer(metadata(), {"z": A, "y": y})[0] is y
    with pytest.raises(ServerFailureError, match=r"'pair' answered without \['z'\], which its configuration declares"):
        answer(metadata(), {"y": y})


def test_a_datatype_that_this_client_does_not_know_is_refused() -> None:
    config = ModelConfig(name="m")
    config.input.add(name="x", data_type=99, dims=[1])
    with pytest.raises(InvalidInputError, match='"x" is datatype 99, which this client has no dtype for'):
        Metadata.of(config)
