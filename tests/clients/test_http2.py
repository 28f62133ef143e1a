"""Calls of gRPC on HTTP/2, against the h2 library: windows, frames, ends of streams and connections, broken bytes."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from h2.settings import SettingCodes
from h2_server import HEAD, H2Server, Peer, double, doubled, h2_server
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import wait_until

from clients import (
    AsyncModel,
    ClientError,
    Model,
    RejectedError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
    grpc_wire,
)
from clients.grpc_body import LARGE_BYTES
from clients.http2 import Call, Http2, field
from clients.line import AnswerError

LIMIT_S = 10
SIZES = (1, 7, 3_000, 4_096, 20_000, 300_000)


@pytest.fixture
def server() -> Iterator[H2Server]:
    with h2_server() as running:
        yield running


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
    server: H2Server, way: Way, limits: dict[SettingCodes | int, int]
) -> None:
    server.settings = limits
    is_narrow = limits.get(SettingCodes.INITIAL_WINDOW_SIZE) == 100
    sizes = (SIZES[:-2] if is_narrow else SIZES) * 3
    check(way(server, sizes), sizes)
    assert server.infers == len(sizes)
    assert len(server.peers) <= 2


@WAYS
@pytest.mark.parametrize(("padding", "piece"), [(None, 1), (0, 3), (200, 1000), (255, 16_000)])
def test_answers_in_any_frames(server: H2Server, way: Way, padding: int | None, piece: int) -> None:
    server.on_infer = lambda peer, stream, body: peer.answer(stream, doubled(body), padding=padding, piece=piece)
    sizes = (1, 3, 50, 200) * 2
    check(way(server, sizes), sizes)


@WAYS
def test_a_connection_that_the_server_ends_is_replaced(server: H2Server, way: Way) -> None:
    """Requests that it has not seen are sent again, and each runs once."""
    runs: list[int] = []

    def leave(peer: Peer, stream: int, body: bytes) -> None:
        if len(peer.methods) <= 4:
            runs.append(stream)
            double(peer, stream, body)
        elif not peer.is_leaving:
            peer.is_leaving = True
            peer.client.sendall(goaway(stream - 2))

    server.on_infer = leave
    sizes = (5,) * 12
    check(way(server, sizes), sizes)
    assert len(runs) == len(sizes)
    assert len(server.peers) > 2


def goaway(last: int) -> bytes:
    return b"\0\0\x08\x07\0" + bytes(4) + last.to_bytes(4) + bytes(4)


@WAYS
def test_a_refused_stream_is_sent_again(server: H2Server, way: Way) -> None:
    refused = set[int]()

    def refuse(peer: Peer, stream: int, body: bytes) -> None:
        if peer.server.infers % 2:
            refused.add(stream)
            peer.h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
        else:
            double(peer, stream, body)

    server.on_infer = refuse
    check(way(server, (4, 4)), (4, 4))
    assert refused


@WAYS
def test_a_stream_that_fails_is_not_sent_again(server: H2Server, way: Way) -> None:
    server.on_infer = lambda peer, stream, body: peer.h2.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
    (error,) = way(server, (4,))
    assert type(error) is ServerFailureError
    assert (error.status, error.retryable, server.infers) == ("INTERNAL", False, 1)


@WAYS
def test_a_connection_that_breaks_is_not_tried_again(server: H2Server, way: Way) -> None:
    server.on_infer = lambda peer, stream, body: peer.client.shutdown(2)
    (error,) = way(server, (4,))
    assert type(error) is ServerUnreachableError
    assert (error.status, error.retryable, server.infers) == ("UNAVAILABLE", False, 1)


@WAYS
def test_an_answer_that_comes_before_the_request_is_sent(server: H2Server, way: Way) -> None:
    """The windows stay closed, so the request would never end."""
    server.holds_windows = True
    server.on_data = lambda peer, stream: (
        peer.refuse(stream, 8, "a%20queue: full") if len(peer.bodies[stream]) > 50_000 else None
    )
    (error,) = way(server, (100_000,))
    assert type(error) is RejectedError
    assert error.text == "a queue: full"
    assert server.infers == 0


@WAYS
@pytest.mark.parametrize("content", [b"", b"\0\0\0\0\x05ab", b"\1\0\0\0\x01a", b"\0\0\0\0\x02\xff\xff"])
def test_a_message_that_is_none(server: H2Server, way: Way, content: bytes) -> None:
    def send(peer: Peer, stream: int, body: bytes) -> None:
        peer.h2.send_headers(stream, HEAD)
        peer.h2.send_data(stream, content)
        peer.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    server.on_infer = send
    (error,) = way(server, (4,))
    assert type(error) is ServerFailureError
    assert "not what Triton sends" in str(error)


@WAYS
@pytest.mark.parametrize(("status", "name"), [("404", "UNIMPLEMENTED"), ("503", "UNAVAILABLE"), ("200", "UNKNOWN")])
def test_an_answer_that_is_not_of_grpc(server: H2Server, way: Way, status: str, name: str) -> None:
    server.on_infer = lambda peer, stream, body: peer.h2.send_headers(stream, [(":status", status)], end_stream=True)
    (error,) = way(server, (4,))
    assert error.status == name


def test_left_calls_go_on_and_their_answers_are_dropped(server: H2Server) -> None:
    """Before 2.59 nothing is cancelled; after it the stream is."""
    held: list[tuple[Peer, int, bytes]] = []

    def hold(peer: Peer, stream: int, body: bytes) -> None:
        if len(held) < 2:
            held.append((peer, stream, body))
        else:
            double(peer, stream, body)

    server.on_infer = hold

    async def leave() -> None:
        async with AsyncModel("m", url=server.url, transport="grpc") as model:
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
    assert [peer.resets for peer in server.peers] == [[]]
    held.clear()
    server.version = "2.59.0"
    asyncio.run(leave())
    assert wait_until(lambda: len(server.peers[1].resets) == 2, seconds=LIMIT_S)
    assert len(server.peers) == 2


class Transcript:
    """What a server sends to a client that makes some calls, as bytes."""

    def __init__(self, bodies: list[bytes], frame: int, *, padding: int | None) -> None:
        self.client, self.ended = Http2(), list[Call]()
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.server.initiate_connection()
        opening = self.server.data_to_send()
        feed(self.client, opening, [])
        fields = {":method": "POST", ":scheme": "http", ":path": "/a/b", ":authority": "c", "te": "trailers"}
        head = b"".join(field(*each) for each in fields.items())
        self.calls = [Call(head, [b"x" * 7], self.ended.append) for _ in bodies]
        for call in self.calls:
            self.client.ask(call)
        streams = [
            event.stream_id
            for event in self.server.receive_data(b"".join(self.client.out))
            if isinstance(event, RequestReceived)
        ]
        for stream, body in zip(streams, bodies, strict=True):
            self.server.send_headers(stream, [*HEAD, ("x-long", "a" * (len(body) % 700))])
            for begin in range(0, len(body), frame):
                self.server.send_data(stream, body[begin : begin + frame], pad_length=padding)
            self.server.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        self.server.ping(b"12345678")
        self.content = self.server.data_to_send()


def feed(client: Http2, content: bytes, places: list[int]) -> None:
    ends = sorted({min(place, len(content)) for place in places} | {0, len(content)})
    for begin, end in itertools.pairwise(ends):
        at = begin
        while at < end:
            room = client.room()
            count = min(len(room), end - at)
            room[:count] = content[at : at + count]
            client.received(count)
            at += count


places = st.lists(st.integers(0, 4_000), max_size=30)
bodies = st.lists(st.binary(max_size=2_000), min_size=1, max_size=5)


@settings(deadline=None)
@given(bodies, st.integers(1, 1_500), st.none() | st.integers(0, 255), places)
def test_answers_in_any_pieces(bodies: list[bytes], frame: int, padding: int | None, places: list[int]) -> None:
    transcript = Transcript(bodies, frame, padding=padding)
    feed(transcript.client, transcript.content, places)
    assert transcript.ended == transcript.calls
    assert [call.body.content() for call in transcript.calls] == bodies
    assert all(call.head["grpc-status"] == "0" and call.error is None for call in transcript.calls)
    assert all(
        call.head["x-long"] == "a" * (len(body) % 700) for call, body in zip(transcript.calls, bodies, strict=True)
    )


@settings(deadline=None)
@given(
    st.lists(st.integers(LARGE_BYTES - 10, 2 * LARGE_BYTES), min_size=1, max_size=3),
    st.integers(500, 16_384),
    st.none() | st.integers(0, 9),
    st.lists(st.integers(0, 400_000), max_size=12),
)
def test_large_answers_in_any_pieces(sizes: list[int], frame: int, padding: int | None, places: list[int]) -> None:
    bodies = [b"\0" + size.to_bytes(4) + np.random.default_rng(size).bytes(size) for size in sizes]
    transcript = Transcript(bodies, frame - 1 - (padding or 0), padding=padding)
    feed(transcript.client, transcript.content, places)
    assert transcript.ended == transcript.calls
    assert [bytes(call.body.content()) for call in transcript.calls] == bodies


@pytest.mark.parametrize("sent", [LARGE_BYTES + 4, LARGE_BYTES + 6, LARGE_BYTES + 9_000])
def test_a_large_answer_of_another_size_than_it_announced(sent: int) -> None:
    body = b"\0" + LARGE_BYTES.to_bytes(4) + bytes(sent - 5)
    transcript = Transcript([body], 9_000, padding=None)
    if sent < LARGE_BYTES + 5:
        feed(transcript.client, transcript.content, [])
        with pytest.raises(ServerFailureError, match="bytes for a message of"):
            grpc_wire.read(transcript.calls[0], "ModelInfer", "u", "m")
    else:
        with pytest.raises(AnswerError, match="more bytes than it announced"):
            feed(transcript.client, transcript.content, [])


@settings(deadline=None, max_examples=300)
@given(bodies, places, st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), max_size=6))
def test_broken_bytes_end_in_one_kind_of_error(
    bodies: list[bytes], places: list[int], changes: list[tuple[int, int]]
) -> None:
    transcript = Transcript(bodies, 500, padding=None)
    content = bytearray(transcript.content)
    for place, value in changes:
        content[place % len(content)] = value
    try:
        feed(transcript.client, bytes(content), places)
    except AnswerError as error:
        transcript.client.ended(error)
    assert len(transcript.ended) == len({id(call) for call in transcript.ended})
