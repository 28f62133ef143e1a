"""Ends of calls of gRPC over a connection that is closed, is full, is flooded, or whose caller leaves in between."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import certificates
import numpy as np
import pytest
from h2.settings import SettingCodes
from h2_server import H2Server, Peer, double
from processes import wait_until

from clients import (
    AsyncModel,
    ClientError,
    Model,
    ServerUnreachableError,
    TimedOutError,
    Tls,
    async_line,
    cancelling,
    channel,
    connection,
    idle,
)
from clients import protocol as pb
from clients.http2 import Http2
from clients.http2_frames import ACK, GOAWAY, LARGEST, PING, SETTINGS, frame

LIMIT_S = 10
ROWS = np.arange(100_000, dtype=np.float32)[:, None]
"""More than the first window."""


def blocking(url: str, array: Any = ROWS, tls: Tls | None = None, **options: Any) -> Any:
    """The answer, or the error, of a `Model`."""
    try:
        with Model("m", url=url, transport="grpc", timeout_s=LIMIT_S, tls=tls) as model:
            return model.predict(array, **options)
    except ClientError as error:
        return error


def awaiting(url: str, array: Any = ROWS, tls: Tls | None = None, **options: Any) -> Any:
    """The same of an `AsyncModel`."""

    async def call() -> Any:
        async with AsyncModel("m", url=url, transport="grpc", timeout_s=LIMIT_S, tls=tls) as model:
            return await model.predict(array, **options)

    try:
        return asyncio.run(call())
    except ClientError as error:
        return error


BOTH = pytest.mark.parametrize("call", [blocking, awaiting])
Calling = Callable[..., Any]


@BOTH
@pytest.mark.parametrize("window", [70_000, 4 << 20])
def test_requests_of_every_size_over_tls(h2: H2Server, call: Calling, window: int, tmp_path: Path) -> None:
    certificates.make(tmp_path)
    h2.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    h2.tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    h2.tls.set_alpn_protocols(["h2"])
    h2.settings = {SettingCodes.INITIAL_WINDOW_SIZE: window}
    for count in (1, 20_000, 300_000):
        rows = np.arange(count, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(call(h2.url, rows, Tls(ca=tmp_path / "ca.pem")), 2 * rows)


@BOTH
def test_a_server_that_takes_no_calls(call: Calling) -> None:
    """It says so with its first word, and leaves the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])
                    kept[-1].sendall(frame(SETTINGS, 0, 0) + frame(GOAWAY, 0, 0, LARGEST.to_bytes(4) + bytes(4)))

        threading.Thread(target=serve, daemon=True).start()
        error = call(f"127.0.0.1:{listener.getsockname()[1]}")
        listener.shutdown(socket.SHUT_RDWR)
    assert type(error) is ServerUnreachableError
    assert error.retryable
    assert len(kept) == channel.ATTEMPTS
    for client in kept:
        client.close()


@BOTH
def test_a_flood_does_not_move_the_deadline(h2: H2Server, call: Calling) -> None:
    ends: list[str] = []

    def flood(peer: Peer, stream: int, body: bytes) -> None:
        until = time.monotonic() + LIMIT_S
        with contextlib.suppress(OSError):
            while time.monotonic() < until and not ends:
                peer.client.sendall(frame(PING, ACK, 0, b"12345678") * 4_000)
        ends.append("flood")
        peer.answer(stream, body)

    h2.on_infer = flood
    try:
        with_model = call(h2.url, ROWS[:9], timeout_s=0.3)
    finally:
        ends.append("call")
    assert type(with_model) is TimedOutError
    assert ends[0] == "call"


@BOTH
def test_a_host_that_takes_no_more_bytes_is_gone(h2: H2Server, call: Calling, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the caller's deadline that has passed, though Python calls both `TimeoutError`."""
    monkeypatch.setattr(channel, "KEEPALIVE_TIMEOUT_S", 0.3)
    for module in (connection, async_line):
        monkeypatch.setattr(module, "prepare", small)
    h2.settings = {SettingCodes.INITIAL_WINDOW_SIZE: LARGEST}
    h2.holds_windows, over = True, threading.Event()

    def stop(peer: Peer, stream: int) -> None:
        if not over.is_set():
            peer.h2.increment_flow_control_window(LARGEST >> 1)
            peer.flush()
            over.wait(LIMIT_S)

    h2.on_data = stop
    error = call(h2.url, np.zeros((1 << 20, 1), np.float32))
    over.set()
    assert type(error) is ServerUnreachableError
    assert "timed out" in error.text


def small(opened: socket.socket, prepare: Callable[[socket.socket], None] = channel.prepare) -> None:
    prepare(opened)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)


@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
@pytest.mark.parametrize("place", ["received", "go_on", "ask"])
def test_after_ctrl_c_a_connection_is_not_used_again(
    h2: H2Server, place: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come between bytes that were received, or sent, and their count."""
    h2.version = version
    monkeypatch.setattr(cancelling, "CLOSE_S", 0.1)  # an answer whose bytes were not counted never ends
    with Model("m", url=h2.url, transport="grpc", timeout_s=LIMIT_S) as model:
        np.testing.assert_array_equal(model.predict(ROWS[:9]), 2 * ROWS[:9])
        with monkeypatch.context() as patched:
            whole = getattr(Http2, place)

            def interrupted(*arguments: Any) -> Any:
                patched.setattr(Http2, place, whole)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(LIMIT_S)

            patched.setattr(Http2, place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.predict(ROWS)
        for _ in range(3):
            np.testing.assert_array_equal(model.predict(ROWS), 2 * ROWS)
    assert len(h2.peers) == 2


@pytest.mark.parametrize("way", ["Model", "AsyncModel"])
def test_the_array_of_a_caller_who_has_left_may_change(h2: H2Server, way: str) -> None:
    """The server gets what the call was made with, since it may keep the state of a sequence."""
    h2.holds_windows = True
    rows, bodies = ROWS.copy(), list[bytes]()

    def take(peer: Peer, stream: int, body: bytes) -> None:
        bodies.append(body)
        double(peer, stream, body)

    h2.on_infer = take

    def release() -> None:
        rows[:] = -1
        h2.holds_windows = False
        peer = h2.peers[0]
        with peer.lock:
            for stream, body in peer.bodies.items():
                if peer.methods[stream] == "ModelInfer":
                    peer.h2.acknowledge_received_data(len(body), stream)
            peer.flush()

    async def leave() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc") as model:
            with pytest.raises(TimedOutError):
                await model.predict(rows, timeout_s=0.3)
            release()
            while not bodies:
                await asyncio.sleep(0.01)

    if way == "AsyncModel":
        asyncio.run(asyncio.wait_for(leave(), LIMIT_S))
    else:
        with Model("m", url=h2.url, transport="grpc") as model:
            with pytest.raises(TimedOutError):
                model.predict(rows, timeout_s=0.3)
            release()
            assert wait_until(lambda: bool(bodies), seconds=LIMIT_S)
    (content,) = pb.ModelInferRequest.FromString(bodies[0]).raw_input_contents
    np.testing.assert_array_equal(np.frombuffer(content, np.float32), ROWS[:, 0])


def test_what_came_before_the_end_is_read_though_nothing_can_be_sent(h2: H2Server) -> None:
    """The first call has its answer, and the second, of which nothing was sent, runs on another connection."""
    held: list[tuple[Peer, int, bytes]] = []

    def hold(peer: Peer, stream: int, body: bytes) -> None:
        if held:
            double(peer, stream, body)
        else:
            held.append((peer, stream, body))

    h2.on_infer = hold

    async def call() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc", timeout_s=LIMIT_S) as model:
            first = asyncio.create_task(model.predict(ROWS[:9]))
            while not held:
                await asyncio.sleep(0.01)
            peer, stream, body = held[0]
            double(peer, stream, body)
            peer.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.client.shutdown(socket.SHUT_RD)
            assert wait_until(lambda: peer.client.fileno() == -1, seconds=LIMIT_S)  # the event loop stands still
            np.testing.assert_array_equal(await model.predict(ROWS[:5]), 2 * ROWS[:5])
            np.testing.assert_array_equal(await first, 2 * ROWS[:9])

    asyncio.run(call())
    assert (h2.infers, len(h2.peers)) == (2, 2)


def test_no_byte_overtakes_one_that_asyncio_keeps() -> None:
    """asyncio is told to report from the first byte on that the system does not take."""

    async def fill() -> bool:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            loop = asyncio.get_running_loop()
            lines: set[async_line.AsyncLine] = set()
            _, line = await loop.create_connection(lambda: async_line.AsyncLine(lines), *listener.getsockname())
            server, _ = listener.accept()
            with server:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(line._file, bytes(1 << 20))
                line.http2.out.append(b"x")
                line._send()
                is_full = line._is_full
                line.abort()
            return is_full

    assert asyncio.run(fill())


def test_an_idle_connection_listens_to_its_server(h2: H2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops waits for connections that do not."""
    monkeypatch.setattr(idle, "LOOK_S", 0.05)
    heard: list[str] = []
    with Model("m", url=h2.url, transport="grpc", timeout_s=LIMIT_S) as model:
        (peer,) = h2.peers
        monkeypatch.setattr(peer, "handle", lambda event: heard.append(type(event).__name__))
        with peer.lock:
            peer.h2.ping(b"anybody?")
            peer.flush()
        assert wait_until(lambda: "PingAckReceived" in heard, seconds=LIMIT_S)
        peer.client.sendall(frame(GOAWAY, 0, 0, LARGEST.to_bytes(4) + bytes(4)))
        assert wait_until(lambda: peer.client.fileno() == -1, seconds=LIMIT_S)
        np.testing.assert_array_equal(model.predict(ROWS[:9]), 2 * ROWS[:9])
    assert len(h2.peers) == 2
