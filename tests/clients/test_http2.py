"""Calls of gRPC on HTTP/2 against the h2 library: any limits and frames, broken bytes, ends of connections."""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes
from h2_server import H2Server, Peer, double, doubled

from clients import (
    AsyncModel,
    ClientError,
    Model,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
    cancelling,
)

LIMIT_S = 20.0


def rows(count: int, number: int = 0) -> Any:
    return (np.arange(count, dtype=np.float32) + number)[:, None]


def in_tasks(server: H2Server, arrays: Sequence[Any], **options: Any) -> list[Any]:
    """The answers, or the errors, to requests that an `AsyncModel` sends at once."""

    async def call() -> list[Any]:
        async with AsyncModel("m", url=server.url, transport="grpc", **({"timeout_s": LIMIT_S} | options)) as model:
            return await asyncio.gather(*map(model.predict, arrays), return_exceptions=True)

    return asyncio.run(call())


def in_threads(server: H2Server, arrays: Sequence[Any], **options: Any) -> list[Any]:
    """The same for a `Model` in two threads."""
    ends: list[Any] = [None] * len(arrays)

    def call(first: int) -> None:
        for number in range(first, len(arrays), 2):
            try:
                ends[number] = model.predict(arrays[number])
            except Exception as error:
                ends[number] = error

    with Model("m", url=server.url, transport="grpc", **({"timeout_s": LIMIT_S} | options)) as model:
        threads = [threading.Thread(target=call, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return ends


WAYS = pytest.mark.parametrize("way", [in_tasks, in_threads])
Way = Callable[..., list[Any]]


def check(way: Way, server: H2Server, sizes: Sequence[int], **options: Any) -> None:
    arrays = [rows(size, number) for number, size in enumerate(sizes)]
    for array, answer in zip(arrays, way(server, arrays, **options), strict=True):
        np.testing.assert_array_equal(answer, 2 * array)


@WAYS
@pytest.mark.parametrize(
    "limits",
    [
        {SettingCodes.INITIAL_WINDOW_SIZE: 100},
        {SettingCodes.MAX_FRAME_SIZE: 1 << 20, SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20},
        {SettingCodes.INITIAL_WINDOW_SIZE: 5_000, SettingCodes.MAX_CONCURRENT_STREAMS: 2},
    ],
)
def test_requests_of_every_size_within_any_limits(
    h2: H2Server, way: Way, limits: dict[SettingCodes | int, int]
) -> None:
    h2.settings = limits
    sizes = (1, 7, 3_000) if limits.get(SettingCodes.INITIAL_WINDOW_SIZE) == 100 else (1, 7, 4_096, 300_000)
    check(way, h2, sizes * 3)
    assert h2.infers == 3 * len(sizes)


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
            peer.client.sendall(b"\0\0\x08\x07\0" + bytes(4) + (stream - 2).to_bytes(4) + bytes(4))  # GOAWAY

    h2.on_infer = leave
    check(way, h2, (5,) * 12)
    assert len(runs) == 12
    assert len(h2.peers) > 2


def reset(peer: Peer, stream: int, body: bytes) -> None:
    peer.h2.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)


def leave(peer: Peer, stream: int, body: bytes) -> None:
    peer.client.shutdown(socket.SHUT_RDWR)


@WAYS
@pytest.mark.parametrize(("end", "kind"), [(reset, ServerFailureError), (leave, ServerUnreachableError)])
def test_a_call_that_fails_is_not_sent_again(h2: H2Server, way: Way, end: Any, kind: type[ClientError]) -> None:
    h2.on_infer = end
    (error,) = way(h2, [rows(4)])
    assert (type(error), error.retryable, h2.infers) == (kind, False, 1)


@WAYS
def test_a_flood_does_not_move_the_deadline(h2: H2Server, way: Way) -> None:
    """The server sends pings until the call has ended."""
    over = threading.Event()

    def flood(peer: Peer, stream: int, body: bytes) -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                peer.client.sendall((b"\0\0\x08\x06\1" + bytes(4) + b"12345678") * 4_000)

    h2.on_infer = flood
    (error,) = way(h2, [rows(9)], timeout_s=0.5)
    over.set()
    assert type(error) is TimedOutError


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


NO_STREAM = 1 << 20
ALLOWED: list[Callable[[random.Random], bytes]] = [
    lambda draw: frame(6, draw.choice([0, 1]), 0, draw.randbytes(8)),  # PING
    lambda draw: frame(8, 0, NO_STREAM, (100).to_bytes(4)),  # WINDOW_UPDATE
    lambda draw: frame(2, 0, 1, draw.randbytes(5)),  # PRIORITY
    lambda draw: frame(draw.randrange(10, 256), draw.randrange(256), draw.randrange(9), draw.randbytes(9)),
    lambda draw: frame(3, 0, NO_STREAM, bytes(4)),  # RST_STREAM
    lambda draw: frame(1, 0, NO_STREAM, b"\x88") + frame(9, 4, NO_STREAM),  # HEADERS and CONTINUATION
    lambda draw: frame(4, 0, 0, struct.pack(">HI", *draw.choice([(3, 1), (5, 16_384), (99, 1)]))),  # SETTINGS
]


class Wire:
    """Sends what h2 says in pieces, between other frames; if it `breaks`, bytes are changed and some end anywhere."""

    def __init__(self, seed: int, *, breaks: bool) -> None:
        self.draw, self.breaks = random.Random(seed), breaks

    def flush(self, peer: Peer) -> None:
        if content := self.mixed(peer.h2.data_to_send()):
            is_end = self.breaks and not self.draw.randrange(8)
            end = self.draw.randrange(len(content)) if is_end else len(content)
            with contextlib.suppress(OSError):
                while content[:end]:
                    size = min(end, self.draw.choice([1, 9, 10, 500, 9_000, 1 << 20]))
                    peer.client.sendall(content[:size])
                    content, end = content[size:], end - size
                if is_end:
                    peer.client.shutdown(socket.SHUT_RDWR)

    def mixed(self, content: bytes) -> bytes:
        """Other frames after each, since the first has to be the server's settings."""
        draw, mixed, at = self.draw, bytearray(), 0
        while at < len(content):
            end = at + 9 + int.from_bytes(content[at : at + 3])
            mixed += content[at:end]
            mixed += b"".join(draw.choice(ALLOWED)(draw) for _ in range(draw.choice([0, 0, 1, 3])))
            at = end
        if mixed and self.breaks and draw.randrange(2):
            at = draw.randrange(len(mixed))
            piece = mixed[at : at + draw.randrange(1, 40)]
            mixed[at : at + len(piece)] = draw.choice([b"", 2 * piece, draw.randbytes(len(piece))])
        return bytes(mixed)


@WAYS
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_frames_give_the_right_answer_and_broken_ones_an_error_of_the_client(
    h2: H2Server, way: Way, breaks: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed bytes of an answer's tensor are not seen by anybody, so only the kind of end counts then."""
    wire, draw = Wire(seed, breaks=breaks), random.Random(seed)
    monkeypatch.setattr(cancelling, "CLOSE_S", 0.1)
    monkeypatch.setattr(Peer, "flush", lambda peer: wire.flush(peer))

    def serve(peer: Peer) -> None:
        with contextlib.closing(peer.client), contextlib.suppress(H2Error, KeyError, OSError):
            peer.serve()

    monkeypatch.setattr(h2, "serve", serve)
    h2.version = ("2.51.0", "2.59.0")[seed % 2]
    h2.on_infer = lambda peer, stream, body: peer.answer(
        stream, doubled(body), padding=draw.choice([None, 0, 255]), piece=draw.choice([100, 16_000])
    )
    sizes = draw.choices([1, 7, 300, 5_000, 60_000], k=8)
    if not breaks:
        check(way, h2, sizes)
        return
    ends: list[Any] = []
    with contextlib.suppress(ClientError):
        ends = way(h2, [rows(size) for size in sizes], timeout_s=0.5)
    assert all(isinstance(end, ClientError | np.ndarray) for end in ends), ends
