"""Calls of gRPC on HTTP/2, against the h2 library: windows, frames, ends of streams and connections."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from h2_server import HEAD, H2Server, Peer, double, doubled
from processes import wait_until

from clients import (
    AsyncModel,
    ClientError,
    Model,
    RejectedError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
)

LIMIT_S = 10
SIZES = (1, 7, 3_000, 4_096, 20_000, 300_000)


def rows(count: int, number: int = 0) -> Any:
    return (np.arange(count, dtype=np.float32) + number)[:, None]


def together(server: H2Server, sizes: tuple[int, ...], **arguments: Any) -> list[Any]:
    """The answers, or the errors, to requests of these sizes that an `AsyncModel` sends at once."""

    async def call() -> list[Any]:
        async with AsyncModel("m", url=server.url, transport="grpc", timeout_s=LIMIT_S) as model:
            calls = (model.predict(rows(size, number), **arguments) for number, size in enumerate(sizes))
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(call())


def one_by_one(server: H2Server, sizes: tuple[int, ...]) -> list[Any]:
    """The same for a `Model` in two threads."""
    answers: list[Any] = [None] * len(sizes)

    def call(numbers: range) -> None:
        for number in numbers:
            try:
                answers[number] = model.predict(rows(sizes[number], number))
            except ClientError as error:
                answers[number] = error

    with Model("m", url=server.url, transport="grpc", timeout_s=LIMIT_S) as model:
        threads = [threading.Thread(target=call, args=(range(begin, len(sizes), 2),)) for begin in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answers


WAYS = pytest.mark.parametrize("way", [together, one_by_one])
Way = Callable[[H2Server, tuple[int, ...]], list[Any]]


def check(answers: list[Any], sizes: tuple[int, ...]) -> None:
    for number, (answer, size) in enumerate(zip(answers, sizes, strict=True)):
        np.testing.assert_array_equal(answer, 2 * rows(size, number))


@WAYS
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {SettingCodes.INITIAL_WINDOW_SIZE: 100},
        {SettingCodes.MAX_CONCURRENT_STREAMS: 1},
        {SettingCodes.MAX_FRAME_SIZE: 1 << 20, SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20},
        {SettingCodes.INITIAL_WINDOW_SIZE: 5_000, SettingCodes.MAX_CONCURRENT_STREAMS: 2},
    ],
)
def test_requests_of_every_size_within_any_limits(
    h2: H2Server, way: Way, limits: dict[SettingCodes | int, int]
) -> None:
    h2.settings = limits
    is_narrow = limits.get(SettingCodes.INITIAL_WINDOW_SIZE) == 100
    sizes = (SIZES[:-2] if is_narrow else SIZES) * 3
    check(way(h2, sizes), sizes)
    assert h2.infers == len(sizes)
    assert len(h2.peers) <= 2


@WAYS
@pytest.mark.parametrize(("padding", "piece"), [(None, 1), (0, 3), (200, 1000), (255, 16_000)])
def test_answers_in_any_frames(h2: H2Server, way: Way, padding: int | None, piece: int) -> None:
    h2.on_infer = lambda peer, stream, body: peer.answer(stream, doubled(body), padding=padding, piece=piece)
    sizes = (1, 3, 50, 200) * 2
    check(way(h2, sizes), sizes)


@WAYS
def test_a_connection_that_the_server_ends_is_replaced(h2: H2Server, way: Way) -> None:
    """Requests that it has not seen are sent again, and each runs once."""
    runs: list[int] = []

    def leave(peer: Peer, stream: int, body: bytes) -> None:
        if len(peer.methods) <= 4:
            runs.append(stream)
            double(peer, stream, body)
        elif not peer.is_leaving:
            peer.is_leaving = True
            peer.client.sendall(goaway(stream - 2))

    h2.on_infer = leave
    sizes = (5,) * 12
    check(way(h2, sizes), sizes)
    assert len(runs) == len(sizes)
    assert len(h2.peers) > 2


def goaway(last: int) -> bytes:
    return b"\0\0\x08\x07\0" + bytes(4) + last.to_bytes(4) + bytes(4)


@WAYS
def test_a_refused_stream_is_sent_again(h2: H2Server, way: Way) -> None:
    refused = set[int]()

    def refuse(peer: Peer, stream: int, body: bytes) -> None:
        if peer.server.infers % 2:
            refused.add(stream)
            peer.h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
        else:
            double(peer, stream, body)

    h2.on_infer = refuse
    check(way(h2, (4, 4)), (4, 4))
    assert refused


@WAYS
def test_a_stream_that_fails_is_not_sent_again(h2: H2Server, way: Way) -> None:
    h2.on_infer = lambda peer, stream, body: peer.h2.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
    (error,) = way(h2, (4,))
    assert type(error) is ServerFailureError
    assert (error.status, error.retryable, h2.infers) == ("INTERNAL", False, 1)


@WAYS
def test_a_connection_that_breaks_is_not_tried_again(h2: H2Server, way: Way) -> None:
    h2.on_infer = lambda peer, stream, body: peer.client.shutdown(2)
    (error,) = way(h2, (4,))
    assert type(error) is ServerUnreachableError
    assert (error.status, error.retryable, h2.infers) == ("UNAVAILABLE", False, 1)


@WAYS
def test_an_answer_that_comes_before_the_request_is_sent(h2: H2Server, way: Way) -> None:
    """The windows stay closed, so the request would never end."""
    h2.holds_windows = True
    h2.on_data = lambda peer, stream: (
        peer.refuse(stream, 8, "a%20queue: full") if len(peer.bodies[stream]) > 50_000 else None
    )
    (error,) = way(h2, (100_000,))
    assert type(error) is RejectedError
    assert error.text == "a queue: full"
    assert h2.infers == 0


@WAYS
@pytest.mark.parametrize("content", [b"", b"\0\0\0\0\x05ab", b"\1\0\0\0\x01a", b"\0\0\0\0\x02\xff\xff"])
def test_a_message_that_is_none(h2: H2Server, way: Way, content: bytes) -> None:
    def send(peer: Peer, stream: int, body: bytes) -> None:
        peer.h2.send_headers(stream, HEAD)
        peer.h2.send_data(stream, content)
        peer.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    h2.on_infer = send
    (error,) = way(h2, (4,))
    assert type(error) is ServerFailureError
    assert "not what Triton sends" in str(error)


@WAYS
@pytest.mark.parametrize(("status", "name"), [("404", "UNIMPLEMENTED"), ("503", "UNAVAILABLE"), ("200", "UNKNOWN")])
def test_an_answer_that_is_not_of_grpc(h2: H2Server, way: Way, status: str, name: str) -> None:
    h2.on_infer = lambda peer, stream, body: peer.h2.send_headers(stream, [(":status", status)], end_stream=True)
    (error,) = way(h2, (4,))
    assert error.status == name


def test_left_calls_go_on_and_their_answers_are_dropped(h2: H2Server) -> None:
    """Before 2.59 nothing is cancelled; after it the stream is."""
    held: list[tuple[Peer, int, bytes]] = []

    def hold(peer: Peer, stream: int, body: bytes) -> None:
        if len(held) < 2:
            held.append((peer, stream, body))
        else:
            double(peer, stream, body)

    h2.on_infer = hold

    async def leave() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc") as model:
            task = asyncio.create_task(model.predict(rows(3)))
            while not held:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(TimedOutError):
                await model.predict(rows(3), timeout_s=0.05)
            np.testing.assert_array_equal(await model.predict(rows(9)), 2 * rows(9))
            for peer, stream, body in held:
                if stream not in peer.resets:
                    double(peer, stream, body)
            np.testing.assert_array_equal(await model.predict(rows(9)), 2 * rows(9))

    asyncio.run(leave())
    assert [peer.resets for peer in h2.peers] == [[]]
    held.clear()
    h2.version = "2.59.0"
    asyncio.run(leave())
    assert wait_until(lambda: len(h2.peers[1].resets) == 2, seconds=LIMIT_S)
    assert len(h2.peers) == 2
