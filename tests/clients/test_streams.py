"""Streams of answers from a decoupled model on a real server, read to their end or left."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_calls import Gate, until
from grpc_server import GrpcServer
from grpc_server import part as message
from relay import RST_STREAM, relay

from clients import (
    AsyncModel,
    ClientError,
    ClosedError,
    Hooks,
    InvalidInputError,
    Model,
    NotReadyError,
    RejectedError,
    Response,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
    TransportError,
)
from serve.launcher import Server

pytestmark = pytest.mark.server
X = np.array([[5]], np.float32)
ROOT = Path(__file__).parents[2]
START = 'X = np.ones((1, 1), np.float32)\nmodel = KIND("m", url=sys.argv[1], transport="grpc")\n'


def values(parts: list[Any]) -> list[float]:
    assert all(part.dtype == np.float32 and part.shape == (1, 1) for part in parts)
    return [float(part[0, 0]) for part in parts]


def blocking(url: str, model: str = "parts", array: Any = X, **wishes: Any) -> tuple[list[Any], ClientError | None]:
    """The answers of `Model`, and the error after them."""
    parts, timeout_s = list[Any](), wishes.pop("timeout_s", None)
    at_error = wishes.pop("at_error", lambda: None)
    with Model(model, url=url) as opened:
        try:
            for part in opened.stream(array, timeout_s=timeout_s, parameters=wishes):
                parts.append(part)
        except ClientError as error:
            at_error()
            return parts, error
    return parts, None


def awaiting(url: str, model: str = "parts", array: Any = X, **wishes: Any) -> tuple[list[Any], ClientError | None]:
    """The same of `AsyncModel`."""
    parts, timeout_s = list[Any](), wishes.pop("timeout_s", None)
    at_error = wishes.pop("at_error", lambda: None)

    async def call() -> ClientError | None:
        async with AsyncModel(model, url=url) as opened:
            try:
                async for part in opened.stream(array, timeout_s=timeout_s, parameters=wishes):
                    parts.append(part)
            except ClientError as error:
                at_error()
                return error
        return None

    return parts, asyncio.run(call())


BOTH = pytest.mark.parametrize("call", [blocking, awaiting])


@BOTH
@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize("last", [False, True])
def test_every_answer_comes_in_order(client_server: Server, call: Any, count: int, last: bool) -> None:
    parts, error = call(client_server.grpc_url, count=count, last=last)
    assert (values(parts), error) == ([5.0 + number for number in range(count)], None)


@BOTH
def test_an_error_in_the_middle_comes_after_the_answers_before_it(client_server: Server, call: Any) -> None:
    parts, error = call(client_server.grpc_url, count=9, fails_at=4)
    assert values(parts) == [5.0, 6.0, 7.0, 8.0]
    assert type(error) is ServerFailureError
    assert (error.text, error.status, error.model, error.retryable) == ("no more of these", "INTERNAL", "parts", False)


@BOTH
def test_a_deadline_is_for_the_whole_stream(client_server: Server, call: Any, gate: Gate) -> None:
    parts, error = call(client_server.grpc_url, count=5, waits_at=2, gate=gate.number, timeout_s=2, at_error=gate.open)
    assert type(error) is TimedOutError
    assert (values(parts), error.retryable) == ([5.0, 6.0], False)


@BOTH
def test_streams_need_grpc(client_server: Server, call: Any) -> None:
    parts, error = call(f"http://{client_server.http_url}", count=1)
    assert (parts, type(error)) == ([], TransportError)
    assert "Give the address of the gRPC port" in str(error)


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_predict_names_the_way_to_call_a_decoupled_model(client_server: Server, transport: str) -> None:
    url = f"http://{client_server.http_url}" if transport == "http" else client_server.grpc_url
    with Model("parts", url=url) as model, pytest.raises(InvalidInputError, match=r"is decoupled.*stream\("):
        model.predict(X)


def test_two_streams_at_once_and_calls_between_them(client_server: Server) -> None:
    """The streams alternate: neither waits for the end of the other."""

    async def scenario() -> None:
        url = client_server.grpc_url
        async with AsyncModel("parts", url=url) as model, AsyncModel("doubles", url=url) as two:
            first, second = (model.stream(base, parameters={"count": 50}) for base in (X, 100 * X))
            for number in range(50):
                assert values([await anext(first), await anext(second)]) == [5.0 + number, 500.0 + number]
                assert values([await two.predict(X)]) == [10.0]
            assert [part async for part in first] == [part async for part in second] == []

    asyncio.run(scenario())
    with Model("parts", url=client_server.grpc_url) as model:
        streams = [model.stream(base, parameters={"count": 40}) for base in (X, 100 * X)]
        pairs = [values([*pair]) for pair in zip(*streams, strict=True)]
        assert pairs == [[5.0 + number, 500.0 + number] for number in range(40)]


@BOTH
def test_streams_over_several_addresses(client_server: Server, call: Any) -> None:
    """Nobody listens at the second address, so it is left out."""
    url = f"ipv4:{client_server.grpc_url},127.0.0.2:{client_server.grpc_port}"
    for _ in range(3):
        parts, error = call(url, count=4)
        assert (values(parts), error) == ([5.0, 6.0, 7.0, 8.0], None)


def test_hooks_see_a_stream_as_one_request(client_server: Server) -> None:
    seen = list[Response]()
    hooks: Hooks = {"response": [seen.append]}
    with Model("parts", url=client_server.grpc_url, hooks=hooks) as model:
        assert len(list(model.stream(X, request_id="a", parameters={"count": 3}))) == 3
        with pytest.raises(ServerFailureError):
            list(model.stream(X, request_id="b", parameters={"count": 3, "fails_at": 1}))
        with contextlib.closing(model.stream(X, request_id="left", parameters={"count": 3})) as stream:
            next(stream)
    assert [(each.request.request_id, type(each.error)) for each in seen] == [
        ("a", type(None)),
        ("b", ServerFailureError),
        ("left", type(None)),
    ]


def test_leaving_a_loop_leaves_the_model_usable(client_server: Server) -> None:
    """Before 2.59 the other answers are read and dropped: nothing is cancelled, and the next stream waits for them."""

    async def scenario(url: str) -> None:
        async with AsyncModel("parts", url=url, max_in_flight=1) as model:
            async with contextlib.aclosing(model.stream(X, parameters={"count": 200, "width": 4096})) as stream:
                assert (await anext(stream))[0, 0] == 5.0
            async for part in model.stream(X, parameters={"count": 20}):
                assert part[0, 0] == 5.0
                break
            assert values([part async for part in model.stream(X, parameters={"count": 3})]) == [5.0, 6.0, 7.0]

    with relay(client_server.grpc_url) as front:
        asyncio.run(scenario(front.url))
        with Model("parts", url=front.url) as model:
            for _ in range(3):
                for part in model.stream(X, parameters={"count": 100}):
                    assert part[0, 0] == 5.0
                    break
            assert values(list(model.stream(X, parameters={"count": 2}))) == [5.0, 6.0]
        assert front.frames(RST_STREAM) == 0


@pytest.mark.parametrize("way", ["cancelled", "closed"])
def test_a_stream_that_waits_can_be_left(client_server: Server, way: str, gate: Gate) -> None:
    async def scenario() -> None:
        seen = list[float]()

        async def read() -> None:
            async for part in model.stream(X, parameters={"count": 3, "waits_at": 1, "gate": gate.number}):
                seen.append(float(part[0, 0]))

        async with AsyncModel("parts", url=client_server.grpc_url) as model:
            task = asyncio.create_task(read())
            await until(lambda: bool(seen))
            if way == "cancelled":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert values([part async for part in model.stream(X, parameters={"count": 1})]) == [5.0]
            gate.open()
            if way == "closed":
                await model.close()
                with pytest.raises(ClosedError):
                    await task
        assert seen[:1] == [5.0]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_server_that_ends_in_the_middle(client_server: Server, kind: str, gate: Gate) -> None:
    """The answers before it have come, and the error says that the model may have run."""
    wishes, parts = {"count": 5, "waits_at": 3, "gate": gate.number}, list[Any]()

    def took(part: Any) -> None:
        parts.append(part)
        if len(parts) == 3:
            front.crash()

    def block() -> None:
        with Model("parts", url=front.url) as model:
            for part in model.stream(X, parameters=wishes):
                took(part)

    async def wait() -> None:
        async with AsyncModel("parts", url=front.url) as model:
            async for part in model.stream(X, parameters=wishes):
                took(part)

    with relay(client_server.grpc_url) as front, pytest.raises(ServerUnreachableError) as raised:
        block() if kind == "blocking" else asyncio.run(wait())
    assert (values(parts), raised.value.retryable) == ([5.0, 6.0, 7.0], False)


@BOTH
def test_a_stream_without_its_last_answer_is_an_error(answering: GrpcServer, call: Any) -> None:
    answering.stream = lambda _: iter([message(1), message(2)])
    parts, error = call(answering.url, "m")
    assert (values(parts), type(error)) == ([1, 2], ServerFailureError)
    assert "ended before its last answer" in str(error)


@BOTH
@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("[request id: a] Exceeds maximum queue size", RejectedError, "UNAVAILABLE"),
        ("Request for unknown model: 'm' is not found", NotReadyError, "UNAVAILABLE"),
        ("the model's own words", ServerFailureError, "INTERNAL"),
    ],
)
def test_errors_inside_a_stream(
    answering: GrpcServer, call: Any, text: str, kind: type[ClientError], status: str
) -> None:
    """After an answer no error says that the model did not run."""
    for before in ([message(1)], []):
        answering.stream = lambda _, before=before: iter([*before, message(None, error=text)])  # type: ignore[misc]
        parts, error = call(answering.url, "m")
        assert (len(parts), type(error)) == (len(before), kind)
        assert (error.text, error.status, error.retryable) == (text, status, kind.retryable and not before)


@pytest.mark.parametrize(("kind", "version"), [("Model", "2.51.0"), ("AsyncModel", "2.51.0"), ("AsyncModel", "2.59.0")])
def test_a_program_ends_with_a_stream_that_nobody_left(answering: GrpcServer, kind: str, version: str) -> None:
    def wait(_: Any) -> Any:
        yield from map(message, (1, 2, 3))
        answering.over.wait(20)

    answering.stream, answering.version = wait, version
    begin = "await model.__aenter__(); stream = model.stream(X); print((await anext(stream)).item())"
    body = {
        "Model": "model.__enter__(); stream = model.stream(X); print(next(stream).item())",
        "AsyncModel": f"async def begin():\n    global stream\n    {begin}\nasyncio.run(begin())",
    }[kind]
    text = f"import asyncio, sys\nimport numpy as np\nfrom clients import AsyncModel, Model\n{START}{body}"
    text = text.replace("KIND", kind)
    command = [sys.executable, "-c", text, answering.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")
