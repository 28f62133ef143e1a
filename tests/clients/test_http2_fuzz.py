"""Calls of gRPC to a server whose bytes come in any pieces, between other frames, changed, or not to their end."""

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from h2.exceptions import H2Error
from h2.settings import SettingCodes
from h2_server import H2Server, Peer, doubled, h2_server

from clients import AsyncModel, ClientError, Model, cancelling
from clients.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

LIMIT_S, DEADLINE_S, HUNG_S = 20.0, 0.5, 10.0
NO_STREAM = 1 << 20
LIMITS: list[dict[SettingCodes | int, int]] = [
    {},
    {SettingCodes.INITIAL_WINDOW_SIZE: 5_000},
    {SettingCodes.MAX_CONCURRENT_STREAMS: 2},
    {SettingCodes.MAX_FRAME_SIZE: 1 << 20, SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20},
]
ALLOWED: list[Callable[[random.Random], bytes]] = [
    lambda draw: frame(PING, draw.choice([0, 1]), 0, draw.randbytes(8)),
    lambda draw: frame(WINDOW_UPDATE, 0, NO_STREAM, (100).to_bytes(4)),
    lambda draw: frame(2, 0, 1, draw.randbytes(5)),  # PRIORITY
    lambda draw: frame(draw.randrange(10, 256), draw.randrange(256), draw.randrange(9), draw.randbytes(9)),
    lambda draw: frame(DATA, draw.choice([0, 1]), NO_STREAM, draw.randbytes(99)),
    lambda draw: frame(RST_STREAM, 0, NO_STREAM, bytes(4)),
    lambda draw: frame(HEADERS, END_HEADERS, NO_STREAM, b"\x88"),
    lambda draw: frame(HEADERS, 0, NO_STREAM, b"\x88") + frame(CONTINUATION, END_HEADERS, NO_STREAM),
    lambda draw: frame(SETTINGS, 0, 0, struct.pack(">HI", *draw.choice([(3, 1), (5, 16_384), (1, 4_096), (99, 1)]))),
    lambda draw: frame(SETTINGS, 1, 0),
]


def between(draw: random.Random, content: bytes) -> bytes:
    """Frames that a server may send, after others, since its first has to be its settings."""
    mixed, at = bytearray(), 0
    while at < len(content):
        end = at + 9 + int.from_bytes(content[at : at + 3])
        mixed += content[at:end]
        mixed += b"".join(draw.choice(ALLOWED)(draw) for _ in range(draw.choice([0, 0, 1, 3])))
        at = end
    return bytes(mixed)


def changed(draw: random.Random, content: bytes) -> bytes:
    """Some bytes that are others, are not there, or are there twice."""
    mixed, at = bytearray(content), draw.randrange(len(content))
    piece = mixed[at : at + draw.randrange(1, 40)]
    mixed[at : at + draw.choice([0, len(piece)])] = draw.choice([b"", 2 * piece, draw.randbytes(len(piece))])
    return bytes(mixed)


def foreign(draw: random.Random, content: bytes) -> bytes:
    """A frame that is drawn by chance before the others."""
    flags = draw.choice([0, 1, 4, 5, 8, 32, draw.randrange(256)])
    return (
        frame(draw.randrange(12), flags, draw.choice([0, 1, 3, 5, NO_STREAM]), draw.randbytes(draw.randrange(20)))
        + content
    )


Ending = Callable[[random.Random, bytes], bytes]
HARMLESS: list[Ending] = [between]
"""What changes no answer."""
HARMFUL: list[Ending] = [lambda draw, content: content, between, changed, foreign]


class Wire:
    """Sends what h2 says in pieces; `ways` are drawn from for each, and with `ends` some end at any byte."""

    def __init__(self, seed: int, ways: list[Ending], *, ends: bool) -> None:
        self.draw, self.ways, self.ends = random.Random(seed), ways, ends

    def flush(self, peer: Peer) -> None:
        if content := peer.h2.data_to_send():
            content = self.draw.choice(self.ways)(self.draw, content)
            is_end = self.ends and not self.draw.randrange(8)
            with contextlib.suppress(OSError):
                self.send(peer.client, content[: self.draw.randrange(len(content))] if is_end else content)
                if is_end:
                    self.end(peer.client)

    def send(self, client: socket.socket, content: bytes) -> None:
        at = 0
        while at < len(content):
            size = self.draw.choice([1, 9, 10, 500, 9_000, 1 << 20])
            client.sendall(content[at : at + size])
            at += size

    def end(self, client: socket.socket) -> None:
        if self.draw.randrange(2):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how := self.draw.choice([None, socket.SHUT_WR, socket.SHUT_RDWR]):
            client.shutdown(how)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Callable[[Wire], None]:
    monkeypatch.setattr(cancelling, "CLOSE_S", 0.1)

    def serve(self: H2Server, peer: Peer) -> None:
        with contextlib.closing(peer.client), contextlib.suppress(H2Error, KeyError, OSError):
            peer.serve()

    monkeypatch.setattr(H2Server, "serve", serve)
    return lambda wire: monkeypatch.setattr(Peer, "flush", lambda peer: wire.flush(peer))


def requests(draw: random.Random) -> list[Any]:
    """Arrays that all differ."""
    sizes = draw.choices([1, 7, 300, 5_000, 60_000], k=8)
    return [1_000 * number + np.arange(size, dtype=np.float32)[:, None] for number, size in enumerate(sizes)]


def in_threads(url: str, arrays: list[Any], timeout_s: float) -> list[Any]:
    ends: list[Any] = [None] * len(arrays)
    with Model("m", url=url, transport="grpc", timeout_s=timeout_s) as model:

        def call(first: int) -> None:
            for number in range(first, len(arrays), 2):
                try:
                    ends[number] = model.predict(arrays[number])
                except Exception as error:
                    ends[number] = error

        threads = [threading.Thread(target=call, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return ends


def in_tasks(url: str, arrays: list[Any], timeout_s: float) -> list[Any]:
    async def call() -> list[Any]:
        async with AsyncModel("m", url=url, transport="grpc", timeout_s=timeout_s) as model:
            return await asyncio.gather(*map(model.predict, arrays), return_exceptions=True)

    return asyncio.run(call())


@pytest.mark.parametrize("way", [in_threads, in_tasks])
@pytest.mark.parametrize("seed", range(8))
def test_other_frames_and_pieces_change_no_answer(wire: Callable[[Wire], None], way: Any, seed: int) -> None:
    draw = random.Random(seed)
    wire(Wire(seed, HARMLESS, ends=False))
    with h2_server() as server:
        server.settings = LIMITS[seed % len(LIMITS)]
        server.on_infer = lambda peer, stream, body: peer.answer(
            stream, doubled(body), padding=draw.choice([None, 0, 255]), piece=draw.choice([100, 16_000])
        )
        arrays = requests(draw)
        for array, answer in zip(arrays, way(server.url, arrays, LIMIT_S), strict=True):
            np.testing.assert_array_equal(answer, 2 * array)


@pytest.mark.parametrize("way", [in_threads, in_tasks])
@pytest.mark.parametrize("seed", range(10))
def test_broken_bytes_are_errors_of_the_client(wire: Callable[[Wire], None], way: Any, seed: int) -> None:
    """Changed bytes of an answer's tensor are not seen by anybody, so only the kind of end counts."""
    wire(Wire(seed, HARMFUL, ends=True))
    with h2_server() as server:
        server.version = ("2.51.0", "2.59.0")[seed % 2]
        begin = time.monotonic()
        try:
            ends = way(server.url, requests(random.Random(seed)), DEADLINE_S)
        except ClientError as error:
            ends = [error]
        assert all(isinstance(end, ClientError | np.ndarray) for end in ends), ends
        assert time.monotonic() - begin < len(ends) * DEADLINE_S + HUNG_S


@pytest.mark.parametrize("way", [in_threads, in_tasks])
@pytest.mark.parametrize("seed", range(10))
def test_answers_that_are_cut_off_are_right_or_errors(wire: Callable[[Wire], None], way: Any, seed: int) -> None:
    wire(Wire(seed, HARMLESS, ends=True))
    with h2_server() as server:
        arrays = requests(random.Random(seed))
        try:
            ends = way(server.url, arrays, DEADLINE_S)
        except ClientError:
            return
        for array, end in zip(arrays, ends, strict=True):
            if not isinstance(end, ClientError):
                np.testing.assert_array_equal(end, 2 * array)
