"""The same answers, configurations and errors as a real server gives for the same models."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import client_models
import numpy as np
import padded_models
import pytest
from all_types import EXTREMES, NUMPY, echo
from numpy.typing import NDArray
from onnx import helper
from tiny_models import onnx_model, python_model, ragged_echo, save
from tritonclient.grpc import service_pb2

from clients import ClientError, Model, wire
from clients.connection import BlockingConnection
from clients.steps import Step
from export.graph.samples import sample
from export.repository import REPOSITORY, read_config
from serve import inprocess
from serve.launcher import Server, Settings, launch

pytestmark = pytest.mark.server

FAILING = """raise ValueError("boom")"""
MISCOUNTING = """return []"""
MISTAKEN = """return ["y" for _ in requests]"""
BATCH = "".join(
    f'{way} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }} ]\n'
    for way, name in (("input", "x"), ("output", "y"))
)


def rows_graph(name: str, shape: Sequence[Any]) -> Any:
    place = [helper.make_tensor_value_info(tensor, 1, shape) for tensor in "xy"]
    return helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, place[:1], place[1:])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of every kind; those without a full configuration are completed by the server."""
    folder = client_models.build(tmp_path_factory.mktemp("models"))
    echo(folder, "types", NUMPY, "max_batch_size: 4\ndynamic_batching { }\n", width=2)
    echo(folder, "bf16", ["BF16"], "max_batch_size: 4\n", width=2)
    ragged_echo(folder, "ragged_echo", rows=4)
    padded_models.encoder(folder, backend="onnxruntime")
    save(folder, "empty", rows_graph("empty", ["b", 2]), "")
    save(folder, "one_value", rows_graph("one_value", ["b"]), "")
    save(folder, "scalar", rows_graph("scalar", []), "")
    save(folder, "fixed", rows_graph("fixed", [1, 2]), "")
    save(folder, "sized", rows_graph("sized", ["b", 2]), "max_batch_size: 2\n")
    (save(folder, "no_config", rows_graph("no_config", ["b", 2]), "") / "config.pbtxt").write_text("")
    (save(folder, "ungrouped", rows_graph("ungrouped", ["b", 2]), "") / "config.pbtxt").write_text(
        f'backend: "onnxruntime"\nmax_batch_size: 4\n{BATCH}dynamic_batching {{ preferred_batch_size: [ 2 ] }}\n'
    )
    python_model(folder, "failing", FAILING)
    python_model(folder, "miscounting", MISCOUNTING)
    python_model(folder, "mistaken", MISTAKEN)
    onnx_model(folder, "rows", [helper.make_node("Add", ["x", "x"], ["y"])], dims=(2, 2))
    return folder


NAMES = (
    *client_models.NAMES,
    *("types", "bf16", "ragged_echo", "encoder", "empty", "one_value", "scalar", "fixed", "sized", "no_config"),
    *("ungrouped", "failing", "miscounting", "mistaken", "rows"),
)


@pytest.fixture(scope="module")
def full_server(repository: Path) -> Iterator[Server]:
    with launch(Settings(models=NAMES, repository=repository)) as running:
        yield running


@pytest.fixture(scope="module")
def both(full_server: Server, repository: Path) -> Iterator[tuple[Any, Any]]:
    """The server's transport and the one in this process."""
    remote, local = BlockingConnection(full_server.grpc_url), inprocess.open(repository)
    yield remote, local
    local.close()
    remote.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_is_completed_as_by_the_server(both: tuple[Any, Any], name: str) -> None:
    request = service_pb2.ModelConfigRequest(name=name).SerializeToString()
    remote, local = (transport.call(Step("ModelConfig", request), name).config for transport in both)
    remote.runtime = ""  # the file of the backend, which this process has in another place
    assert str(local) == str(remote)


def predictions(name: str, repository: Path, url: str, calls: Sequence[Any]) -> list[list[tuple[NDArray[Any], ...]]]:
    """The answers to calls one by one, from the server and from this process."""
    found = []
    for transport in ("grpc", inprocess.open(repository)):
        with Model(name, url=url, transport=transport) as model:
            answers = [model.predict(arrays) for arrays in calls]
        found.append([answer if isinstance(answer, tuple) else (answer,) for answer in answers])
    return found


def assert_bit_equal(found: list[list[tuple[NDArray[Any], ...]]]) -> None:
    for remote, local in zip(*found, strict=True):
        for one, other in zip(remote, local, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert list(one.flat) == list(other.flat) if one.dtype.hasobject else one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ["ranker", "text_recognition"])
def test_shipped_models_give_bit_equal_answers(server: Server, name: str) -> None:
    config = read_config(REPOSITORY / name / "config.pbtxt")
    calls = [sample(config, rows=rows, seed=rows) for rows in (1, 2, config.max_batch_size)]
    assert_bit_equal(predictions(name, REPOSITORY, server.grpc_url, calls))


def test_every_type_gives_bit_equal_answers(full_server: Server, repository: Path) -> None:
    arrays = {f"x_{kind}": EXTREMES[kind][None] for kind in NUMPY}
    assert_bit_equal(predictions("types", repository, full_server.grpc_url, [arrays]))
    bits = {"x_BF16": np.stack([EXTREMES["BF16"]] * 3)}
    assert_bit_equal(predictions("bf16", repository, full_server.grpc_url, [bits]))


def test_scalars_and_reshaped_values_give_bit_equal_answers(full_server: Server, repository: Path) -> None:
    assert_bit_equal(predictions("one_value", repository, full_server.grpc_url, [np.ones((3, 1), np.float32)]))
    assert_bit_equal(predictions("scalar", repository, full_server.grpc_url, [np.ones(1, np.float32)]))
    calls = [{"x": np.array([["a", "bcd"]], np.object_)}]
    assert_bit_equal(predictions("texts", repository, full_server.grpc_url, calls))


@pytest.mark.parametrize("name", ["ragged_echo", "encoder"])
def test_ragged_and_padded_requests_of_one_batch_give_bit_equal_answers(
    full_server: Server, repository: Path, name: str
) -> None:
    """Four requests of different length, sent together; each execution has all of them or the test tells less."""
    generator = np.random.default_rng(1)
    if name == "encoder":
        calls: list[Mapping[str, Any]] = [{"tokens": generator.integers(0, 32, (1, size))} for size in (3, 1, 7, 4)]
    else:
        calls = [{"X": generator.normal(size=(1, size)).astype(np.float32)} for size in (3, 1, 7, 4)]
    found: list[list[tuple[NDArray[Any], ...]]] = []
    for transport in ("grpc", inprocess.open(repository)):
        with (
            Model(name, url=full_server.grpc_url, transport=transport) as model,
            ThreadPoolExecutor(4) as pool,
        ):
            if name == "ragged_echo":  # its batch is full with four rows, in the order of arrival
                answers = list(pool.map(model.predict, calls))
                found.append([(answer[0], answer[1]) for answer in answers])
            else:
                found.append(list(pool.map(model.predict, calls)))
            if not isinstance(transport, str) and name == "ragged_echo":
                assert transport.statistics(name).executions == {4: 1}
    assert_bit_equal(found)


Inputs = Sequence[tuple[str, str, tuple[int, ...]]]
F4 = np.ones(4, np.float32)
TWO_ROWS: Inputs = [("x", "FP32", (2, 2))]
BAD: dict[str, tuple[str, Inputs, Sequence[NDArray[Any]]]] = {
    "another name": ("rows", [("z", "FP32", (2, 2))], [F4]),
    "no input": ("rows", [], []),
    "too many inputs": ("rows", [*TWO_ROWS, ("z", "FP32", (2, 2))], [F4, F4]),
    "one of two inputs": ("pair", [("a", "FP32", (1, 2))], [F4[:2]]),
    "another type": ("rows", [("x", "INT32", (2, 2))], [F4.astype(np.int32)]),
    "another rank": ("rows", [("x", "FP32", (4,))], [F4]),
    "another dim": ("rows", [("x", "FP32", (1, 4))], [F4]),
    "too many rows": ("rows", [("x", "FP32", (9, 2))], [np.ones(18, np.float32)]),
    "no shape": ("rows", [("x", "FP32", ())], [F4[:1]]),
    "too few bytes": ("rows", TWO_ROWS, [F4[:3]]),
    "too many bytes": ("rows", TWO_ROWS, [np.ones(9, np.float32)]),
    "rows that differ": ("pair", [("a", "FP32", (1, 2)), ("b", "INT32", (2, 2))], [F4[:2], np.ones(4, np.int32)]),
    "unbatched rank": ("unbatched", [("x", "INT64", (1, 2))], [np.ones(2, np.int64)]),
    "an unknown model": ("nothing", TWO_ROWS, [F4]),
    "a model that raises": ("failing", [("x", "FP32", (1, 1))], [F4[:1]]),
    "a model that returns too few": ("miscounting", [("x", "FP32", (1, 1))], [F4[:1]]),
    "a model that returns other things": ("mistaken", [("x", "FP32", (1, 1))], [F4[:1]]),
    "a model that answers an error": ("picky", [("x", "FP32", (1, 1))], [-F4[:1]]),
    "a run that fails": ("encoder", [("tokens", "INT64", (1, 1))], [np.array([99])]),
}


def error(transport: Any, model: str, message: bytes, tensors: Sequence[NDArray[Any]]) -> tuple[type, Any, str, bool]:
    with pytest.raises(ClientError) as raised:
        transport.call(Step("ModelInfer", message, [wire.contents(tensor) for tensor in tensors]), model)
    found = raised.value
    return type(found), found.status, found.text, found.retryable


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_get_the_servers_error(both: tuple[Any, Any], what: str, repository: Path) -> None:
    name, inputs, tensors = BAD[what]
    message = wire.head(name, "", inputs)
    remote, local = (error(transport, name, message, tensors) for transport in both)
    assert local == remote


def test_an_unknown_output_or_version_and_an_id_get_the_servers_error(both: tuple[Any, Any]) -> None:
    message = service_pb2.ModelInferRequest.FromString(wire.head("rows", "", TWO_ROWS))
    message.outputs.add(name="z")
    remote, local = (error(transport, "rows", message.SerializeToString(), [F4]) for transport in both)
    assert local == remote
    message = wire.head("rows", "", [("x", "FP32", (4,))]) + wire.options("a-17")
    remote, local = (error(transport, "rows", message, [F4]) for transport in both)
    assert local == remote
    message = wire.head("rows", "", TWO_ROWS) + wire.options(parameters={"priority": "high"})
    remote, local = (error(transport, "rows", message, [F4]) for transport in both)
    assert local[:2] == remote[:2]
    remote, local = (error(transport, "rows", wire.head("rows", "", TWO_ROWS), []) for transport in both)
    assert local[:2] == remote[:2]
    remote, local = (error(transport, "rows", wire.head("rows", "7", TWO_ROWS), [F4]) for transport in both)
    assert local[0] is remote[0]


def test_a_model_sees_the_id_and_the_parameters(full_server: Server, repository: Path) -> None:
    found = []
    for transport in ("grpc", inprocess.open(repository)):
        with Model("asked", url=full_server.grpc_url, transport=transport) as model:
            array = np.ones((1, 1), np.float32)
            found.append(model.predict(array, request_id="a-17", parameters={"user": "x", "n": 3}, priority=1).item())
    # The server writes the parameters in no certain order.
    remote, local = map(json.loads, found)
    assert remote == local == {"id": "a-17", "parameters": {"user": "x", "n": 3}}
