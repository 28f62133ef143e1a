"""Streams of answers from a decoupled model on a real server."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import stream_models
from stream_models import X, values

from clients import (
    AsyncModel,
    ClientError,
    Hooks,
    InvalidInputError,
    Model,
    Response,
    ServerFailureError,
    TimedOutError,
    TransportError,
)
from clients.messages import WINDOW
from serve.launcher import Server, launch

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = stream_models.build(tmp_path_factory.mktemp("streams"))
    with launch(stream_models.settings(repository)) as running:
        yield running


def blocking(url: str, model: str = "parts", array: Any = X, **wishes: Any) -> tuple[list[Any], ClientError | None]:
    """The answers of `Model`, and the error after them."""
    parts, timeout_s = list[Any](), wishes.pop("timeout_s", None)
    with Model(model, url=url) as opened:
        try:
            for part in opened.stream(array, timeout_s=timeout_s, parameters=wishes):
                parts.append(part)
        except ClientError as error:
            return parts, error
    return parts, None


def awaiting(url: str, model: str = "parts", array: Any = X, **wishes: Any) -> tuple[list[Any], ClientError | None]:
    """The same of `AsyncModel`."""
    parts, timeout_s = list[Any](), wishes.pop("timeout_s", None)

    async def call() -> ClientError | None:
        async with AsyncModel(model, url=url) as opened:
            try:
                async for part in opened.stream(array, timeout_s=timeout_s, parameters=wishes):
                    parts.append(part)
            except ClientError as error:
                return error
        return None

    return parts, asyncio.run(call())


BOTH = pytest.mark.parametrize("call", [blocking, awaiting])


@BOTH
@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize("last", [False, True])
def test_every_answer_comes_in_order(server: Server, call: Any, count: int, last: bool) -> None:
    parts, error = call(server.grpc_url, count=count, last=last)
    assert (values(parts), error) == ([5.0 + number for number in range(count)], None)


@BOTH
def test_a_model_with_one_answer_streams_it(server: Server, call: Any) -> None:
    parts, error = call(server.grpc_url, "doubles")
    assert (values(parts), error) == ([10.0], None)


@BOTH
def test_an_error_in_the_middle_comes_after_the_answers_before_it(server: Server, call: Any) -> None:
    parts, error = call(server.grpc_url, count=9, fails_at=4)
    assert values(parts) == [5.0, 6.0, 7.0, 8.0]
    assert type(error) is ServerFailureError
    assert (error.text, error.status, error.model, error.retryable) == ("no more of these", "INTERNAL", "parts", False)
    parts, error = call(server.grpc_url, count=3)
    assert (values(parts), error) == ([5.0, 6.0, 7.0], None)


@BOTH
def test_a_deadline_is_for_the_whole_stream(server: Server, call: Any) -> None:
    parts, error = call(server.grpc_url, count=5, waits_at=2, seconds=1.5, timeout_s=0.7)
    assert type(error) is TimedOutError
    assert (values(parts), error.retryable) == ([5.0, 6.0], False)


@BOTH
def test_answers_larger_than_the_window_come_whole(server: Server, call: Any) -> None:
    width = WINDOW // 4 * 3 + 1
    parts, error = call(server.grpc_url, count=4, width=width)
    assert error is None
    np.testing.assert_array_equal(np.concatenate(parts), np.repeat([[5], [6], [7], [8]], width, axis=1))


@BOTH
def test_wrong_arrays_are_refused_before_anything_is_sent(server: Server, call: Any) -> None:
    parts, error = call(server.grpc_url, array=X.astype(np.float64), count=1)
    assert (parts, type(error)) == ([], InvalidInputError)


@BOTH
def test_streams_need_grpc(server: Server, call: Any) -> None:
    parts, error = call(f"http://{server.http_url}", count=1)
    assert (parts, type(error)) == ([], TransportError)
    assert "Give the server's gRPC address" in str(error)


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_predict_names_the_way_to_call_a_decoupled_model(server: Server, transport: str) -> None:
    url = f"http://{server.http_url}" if transport == "http" else server.grpc_url
    with Model("parts", url=url) as model, pytest.raises(InvalidInputError, match=r"is decoupled.*stream\("):
        model.predict(X)


def test_two_streams_at_once_and_calls_between_them(server: Server) -> None:
    """The streams alternate: neither waits for the end of the other."""

    async def scenario() -> None:
        async with AsyncModel("parts", url=server.grpc_url) as model, AsyncModel("doubles", url=server.grpc_url) as two:
            wishes = {"count": 50, "waits_at": 25, "seconds": 0.2}
            first, second = (model.stream(base, parameters=wishes) for base in (X, 100 * X))
            for number in range(50):
                assert values([await anext(first), await anext(second)]) == [5.0 + number, 500.0 + number]
                assert values([await two.predict(X)]) == [10.0]
            assert [part async for part in first] == [part async for part in second] == []

    asyncio.run(scenario())


def test_two_blocking_streams_alternate(server: Server) -> None:
    with Model("parts", url=server.grpc_url) as model:
        streams = [model.stream(base, parameters={"count": 40}) for base in (X, 100 * X)]
        pairs = list(zip(*streams, strict=True))
        assert values([part for pair in pairs for part in pair]) == [
            value for number in range(40) for value in (5.0 + number, 500.0 + number)
        ]


def test_a_slow_caller_holds_no_more_than_the_window(server: Server) -> None:
    """64 MB are on their way to a caller that has taken one answer."""

    async def scenario() -> int:
        async with AsyncModel("parts", url=server.grpc_url) as model:
            stream = model.stream(X, parameters={"count": 1000, "width": 16 << 10})
            await anext(stream)
            tracemalloc.start()
            await asyncio.sleep(1.0)
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            firsts = [float(part[0, 0]) async for part in stream]
            assert firsts == [6.0 + number for number in range(999)]
            return held

    assert asyncio.run(scenario()) < 2 * WINDOW


@BOTH
def test_streams_over_several_addresses(server: Server, call: Any) -> None:
    host, _, port = server.grpc_url.rpartition(":")
    assert host == "127.0.0.1"
    url = f"127.0.0.1:{port},127.0.0.2:{port}"
    # The server listens at the first address only, so the second is left out when it is asked.
    for _ in range(3):
        parts, error = call(url, count=4)
        assert (values(parts), error) == ([5.0, 6.0, 7.0, 8.0], None)


def test_hooks_see_a_stream_as_one_request(server: Server) -> None:
    seen = list[Response]()
    hooks: Hooks = {"response": [seen.append]}
    with Model("parts", url=server.grpc_url, hooks=hooks) as model:
        assert len(list(model.stream(X, request_id="a", parameters={"count": 3}))) == 3
        with pytest.raises(ServerFailureError):
            list(model.stream(X, request_id="b", parameters={"count": 3, "fails_at": 1}))
    assert [(each.request.request_id, type(each.error)) for each in seen] == [
        ("a", type(None)),
        ("b", ServerFailureError),
    ]
