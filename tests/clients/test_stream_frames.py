"""Streams of answers in every way that HTTP/2 can carry them, from a server on the h2 library."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from h2_server import HEAD, H2Server, Peer, message
from processes import wait_until

from clients import (
    AsyncModel,
    ClientError,
    Model,
    NotReadyError,
    RejectedError,
    ServerFailureError,
)
from clients.messages import WINDOW

ONE = np.ones((1, 1), np.float32)
LIMIT_S = 20


def sends(content: bytes, *, piece: int = 1 << 14, padding: int | None = None, status: str = "0") -> Any:
    """A function that answers a stream with these bytes and this status."""

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        with peer.lock:
            peer.h2.send_headers(stream, HEAD)
            for begin in range(0, len(content), piece):
                peer.h2.send_data(stream, content[begin : begin + piece], pad_length=padding)
                peer.flush()
            peer.h2.send_headers(stream, [("grpc-status", status), ("grpc-message", "of the server")], end_stream=True)
            peer.flush()

    return answer


Collected = tuple[list[float], ClientError | None]


def blocking(url: str) -> Collected:
    parts = list[float]()
    with Model("m", url=url, transport="grpc", timeout_s=LIMIT_S) as model:
        try:
            for part in model.stream(ONE):
                parts.append(float(part[0, 0]))
        except ClientError as error:
            return parts, error
    return parts, None


def awaiting(url: str) -> Collected:
    parts = list[float]()

    async def call() -> ClientError | None:
        async with AsyncModel("m", url=url, transport="grpc", timeout_s=LIMIT_S) as model:
            try:
                async for part in model.stream(ONE):
                    parts.append(float(part[0, 0]))
            except ClientError as error:
                return error
        return None

    return parts, asyncio.run(call())


Calling = Callable[[str], Collected]
BOTH = pytest.mark.parametrize("call", [blocking, awaiting])
WHOLE = message(1) + message(2, width=3000) + message(3) + message(None, final=True)


@BOTH
@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 14])
def test_messages_in_any_pieces(h2: H2Server, call: Calling, piece: int) -> None:
    content = message(1) + message(2) + message(3) + message(None, final=True) if piece < 7 else WHOLE
    h2.on_infer = sends(content, piece=piece)
    assert call(h2.url) == ([1, 2, 3], None)


@BOTH
def test_padding_takes_nothing_from_the_window(h2: H2Server, call: Calling) -> None:
    """1.7 MB of it around 7 KB of messages, through a window of 1 MiB."""
    content = b"".join(message(number) for number in range(200))
    h2.on_infer = flooding(content, 1, [], piece=1, padding=255)
    assert len(content) * 256 > 3 * WINDOW // 2
    assert call(h2.url) == ([*map(float, range(200))], None)


@BOTH
def test_a_stream_without_its_last_answer_is_an_error(h2: H2Server, call: Calling) -> None:
    h2.on_infer = sends(message(1) + message(2))
    parts, error = call(h2.url)
    assert (parts, type(error)) == ([1, 2], ServerFailureError)
    assert "ended before its last answer" in str(error)


@BOTH
def test_a_stream_that_ends_inside_a_message_is_an_error(h2: H2Server, call: Calling) -> None:
    h2.on_infer = sends(message(1, final=True) + message(2)[:-3])
    parts, error = call(h2.url)
    assert (parts, type(error)) == ([1], ServerFailureError)


@BOTH
@pytest.mark.parametrize(
    ("status", "kind"), [("14", ClientError), ("8", RejectedError), ("5", NotReadyError), ("13", ServerFailureError)]
)
def test_a_status_at_the_end(h2: H2Server, call: Calling, status: str, kind: type[ClientError]) -> None:
    h2.on_infer = sends(message(1), status=status)
    parts, error = call(h2.url)
    assert parts == [1]
    assert isinstance(error, kind)
    assert (error.text, error.retryable) == ("of the server", False)


@BOTH
@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("[request id: a] Exceeds maximum queue size", RejectedError, "UNAVAILABLE"),
        ("Request for unknown model: 'm' is not found", NotReadyError, "UNAVAILABLE"),
        ("the model's own words", ServerFailureError, "INTERNAL"),
    ],
)
def test_errors_inside_a_stream(h2: H2Server, call: Calling, text: str, kind: type[ClientError], status: str) -> None:
    h2.on_infer = sends(message(1) + message(None, error=text))
    parts, error = call(h2.url)
    assert (parts, type(error)) == ([1], kind)
    assert error
    assert (error.text, error.status, error.retryable) == (text, status, False)
    h2.on_infer = sends(message(None, error=text))
    parts, error = call(h2.url)
    assert (parts, type(error)) == ([], kind)
    assert error
    assert error.retryable is kind.retryable


@BOTH
def test_what_is_no_message_is_an_error(h2: H2Server, call: Calling) -> None:
    h2.on_infer = sends(message(1) + b"\0\0\0\0\3\xff\xff\xff")
    parts, error = call(h2.url)
    assert (parts, type(error)) == ([1], ServerFailureError)
    h2.on_infer = sends(message(1) + b"\1\0\0\0\1x")
    assert type(call(h2.url)[1]).__name__ == "ServerUnreachableError"


@BOTH
@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
def test_only_servers_that_survive_it_get_a_cancellation(h2: H2Server, call: Calling, version: str) -> None:
    h2.version, begun = version, list[tuple[Peer, int]]()

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        begun.append((peer, stream))
        with peer.lock:
            peer.h2.send_headers(stream, HEAD)
            peer.h2.send_data(stream, message(1))
            peer.flush()

    def end() -> None:
        """Send the rest to a client that has left."""
        peer, stream = begun[0]
        with peer.lock:
            peer.h2.send_data(stream, message(2, final=True))
            peer.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            peer.flush()

    def left() -> None:
        peer, stream = begun[0]
        if version == "2.59.0":
            assert wait_until(lambda: peer.resets == [stream], seconds=10)
        else:
            assert not peer.resets
            end()

    async def asynchronous() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc") as model:
            async with contextlib.aclosing(model.stream(ONE)) as parts:
                assert (await anext(parts)).item() == 1
            await asyncio.to_thread(left)
            for _ in range(1000):
                if not model._in_flight.count:
                    break
                await asyncio.sleep(0.01)
            assert model._in_flight.count == 0

    h2.on_infer = answer
    if call is awaiting:
        asyncio.run(asynchronous())
        return
    with Model("m", url=h2.url, transport="grpc") as model:
        for part in model.stream(ONE):
            assert part.item() == 1
            break
        left()


def test_a_slow_thread_stops_the_server_at_the_window(h2: H2Server) -> None:
    """A thread that reads nothing grants nothing; a message larger than the window then comes whole."""
    h2.on_infer = flooding(message(1, width=3 * WINDOW // 4), 2, went := list[int]())
    with Model("m", url=h2.url, transport="grpc") as model:
        stream = model.stream(ONE)
        assert next(stream).shape == (3 * WINDOW // 4, 1)
        assert went[0] <= 3 * WINDOW + 2 * WINDOW
        assert [part.shape for part in stream] == [(3 * WINDOW // 4, 1)]


def test_a_slow_task_stops_the_server_at_the_window(h2: H2Server) -> None:
    """Whole answers wait, so nothing is granted until the task takes them."""
    each = message(1, width=WINDOW // 16)
    h2.on_infer = flooding(each, 64, went := list[int]())

    async def scenario() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc") as model:
            stream = model.stream(ONE)
            await anext(stream)
            most = WINDOW + WINDOW // 2 + len(each)
            await asyncio.to_thread(wait_until, lambda: bool(went and went[0] >= WINDOW), seconds=10)
            await asyncio.sleep(0.3)
            assert WINDOW <= went[0] <= most
            assert len([part async for part in stream]) == 63

    asyncio.run(scenario())


def flooding(
    each: bytes, count: int, went: list[int], *, piece: int = 1 << 14, padding: int | None = None
) -> Callable[[Peer, int, bytes], None]:
    """Sends bytes `count` times, as fast as the window allows; `went` holds how many were sent."""
    content = each * count + message(None, final=True)
    more = 0 if padding is None else padding + 1

    def send(peer: Peer, stream: int) -> None:
        sent = 0
        with peer.lock:
            peer.h2.send_headers(stream, HEAD)
        while sent < len(content):
            with peer.lock:
                size = min(peer.h2.local_flow_control_window(stream) - more, piece, len(content) - sent)
                if size > 0:
                    peer.h2.send_data(stream, content[sent : sent + size], pad_length=padding)
                    peer.flush()
                    sent += size
                    went[:] = [sent]
            if size <= 0:
                time.sleep(0.001)
        with peer.lock:
            peer.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            peer.flush()

    return lambda peer, stream, _: threading.Thread(target=send, args=(peer, stream), daemon=True).start()


@BOTH
def test_a_stream_that_has_answered_is_not_made_again(h2: H2Server, call: Calling) -> None:
    """The server says REFUSED_STREAM, that it has not run the request, in the same packet as an answer."""

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        with peer.lock:
            peer.h2.send_headers(stream, HEAD)
            peer.h2.send_data(stream, message(1))
            peer.h2.reset_stream(stream, 7)
            peer.flush()

    h2.on_infer = answer
    parts, error = call(h2.url)
    assert (parts, h2.infers) == ([1], 1)
    assert error
    assert not error.retryable
