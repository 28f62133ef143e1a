"""Streams that end early: their model is closed, their process forks, Ctrl-C, a deadline, a model that fails."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from h2_server import HEAD, H2Server, Peer, h2_server, message

from clients import (
    AsyncModel,
    ClosedError,
    Hooks,
    Model,
    NotReadyError,
    Response,
    ServerUnreachableError,
    TimedOutError,
    cancelling,
)
from clients.async_connection import Connection
from clients.connection import BlockingConnection
from clients.replicas import Replicas
from clients.steps import Step, run
from clients.terms import Terms

ROOT = Path(__file__).parents[2]
ONE = np.ones((1, 1), np.float32)
LIMIT_S = 20


def begins(peer: Peer, stream: int, content: bytes) -> None:
    """Send the begin of an answer."""
    with peer.lock:
        peer.h2.send_headers(stream, HEAD)
        peer.h2.send_data(stream, content)
        peer.flush()


def ends(peer: Peer, stream: int, content: bytes = b"") -> None:
    """Send the rest of it."""
    with peer.lock:
        peer.h2.send_data(stream, content)
        peer.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        peer.flush()


@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
@pytest.mark.parametrize("came", [1, 2])
def test_closing_the_model_between_two_answers_ends_the_stream(
    h2: H2Server, version: str, came: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer may have come by then, or not."""
    h2.version = version
    monkeypatch.setattr(cancelling, "CLOSE_S", 0.1)  # the last answer never comes

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        with peer.lock:
            peer.h2.send_headers(stream, HEAD)
            peer.h2.send_data(stream, message(1) * came)
            peer.flush()

    async def scenario() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc") as model:
            stream = model.stream(ONE)
            assert (await anext(stream)).item() == 1
        with pytest.raises(ClosedError):
            await asyncio.wait_for(anext(stream), LIMIT_S)

    h2.on_infer = answer
    asyncio.run(scenario())


def test_a_forked_process_leaves_the_stream_to_its_parent(h2: H2Server) -> None:
    """The child asks for the next answer, and drops the stream; then the server sends the rest to the parent."""
    h2.version, begun = "2.59.0", list[tuple[Peer, int]]()

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        begun.append((peer, stream))
        begins(peer, stream, message(1))

    script = """
import numpy, os, signal, sys; from clients import ClosedError, Model
signal.alarm(10)
with Model("m", url=sys.argv[1], transport="grpc") as model:
    streams = [model.stream(numpy.ones((1, 1), numpy.float32)) for _ in range(2)]
    print([next(stream).item() for stream in streams], flush=True)
    if not (child := os.fork()):
        signal.alarm(5)
        try: next(streams[0])
        except ClosedError: print("closed", flush=True)
        streams.clear()
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
    print([[part.item() for part in stream] for stream in streams], flush=True)
"""
    h2.on_infer = answer
    with subprocess.Popen([sys.executable, "-c", script, h2.url], cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert [process.stdout.readline() for _ in range(3)] == [b"[1.0, 1.0]\n", b"closed\n", b"0\n"]
            assert [peer.resets for peer, _ in begun] == [[], []]
            for peer, stream in begun:
                ends(peer, stream, message(2) + message(3, final=True))
            assert process.stdout.read() == b"[[2.0, 3.0], [2.0, 3.0]]\n"
        finally:
            process.kill()


def test_a_request_that_ctrl_c_cuts_is_not_waited_for(h2: H2Server) -> None:
    """The server has a part of it, and never gets the rest."""
    h2.holds_windows, interrupted = True, threading.Event()

    def interrupt(peer: Peer, stream: int) -> None:
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)

    h2.on_data = interrupt
    with Model("m", url=h2.url, transport="grpc") as model:
        with pytest.raises(KeyboardInterrupt):
            next(model.stream(np.ones((1 << 20, 1), np.float32)))
        assert isinstance(model._connection, BlockingConnection)
        streams = model._connection._streams
        assert streams
        assert (streams.dropped, len(streams._busy), len(streams._idle._lines)) == (0, 0, 0)


STREAM = Step("ModelStreamInfer", b"")


def test_no_stream_begins_while_its_connection_is_closed(h2: H2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = BlockingConnection(h2.url)
    connection.stream(STREAM, "m").close()
    streams = connection._streams
    assert streams
    close = streams.close

    def close_and_try() -> None:
        with pytest.raises(ValueError, match="was closed"):
            connection.stream(STREAM, "m")
        close()

    monkeypatch.setattr(streams, "close", close_and_try)
    connection.close()


@pytest.mark.parametrize("cancels", [False, True])
def test_a_stream_that_connects_while_its_connection_is_closed(
    h2: H2Server, cancels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that survive it get no request; others are asked, as calls in flight are still answered there."""

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        begins(peer, stream, message(1))
        ends(peer, stream, message(2, final=True))

    h2.on_infer = answer
    connection = BlockingConnection(h2.url)
    connection.cancels = cancels
    parts = connection.stream(STREAM, "m")
    streams = connection._streams
    assert streams
    connect = streams._connect

    def connect_and_close(*arguments: Any) -> Any:
        line = connect(*arguments)
        connection.close()
        return line

    monkeypatch.setattr(streams, "_connect", connect_and_close)
    with pytest.raises(ValueError, match="was closed") if cancels else contextlib.nullcontext():
        assert len(list(parts)) == 2
    assert h2.infers == (not cancels)


def test_no_stream_begins_after_its_connection_is_closed(h2: H2Server) -> None:
    async def scenario() -> None:
        connection = Connection(h2.url)
        await connection.close()
        with pytest.raises(asyncio.CancelledError):
            connection.stream(STREAM, "m")
        assert connection._streams is None

    asyncio.run(scenario())


@pytest.fixture
def two() -> Iterator[tuple[H2Server, H2Server]]:
    with h2_server() as first, h2_server() as second:
        first.version = second.version = "2.59.0"
        yield first, second


class Watched:
    """A client of two servers whose looks at replicas are counted and not made."""

    def __init__(self, model: Model) -> None:
        assert isinstance(model._exchange, Replicas)
        self.model, self.replicas, self.looks = model, model._exchange, list[Generator[Any, Any, None]]()
        self.replicas.start = self.looks.append

    def left_out(self) -> int:
        return sum(replica.error is not None for replica in self.replicas._all)


@pytest.fixture
def watched(two: tuple[H2Server, H2Server]) -> Iterator[Watched]:
    with Model("m", url=",".join(server.url for server in two), transport="grpc") as model:
        yield Watched(model)


@pytest.mark.parametrize(("answered", "left_out"), [(True, 0), (False, 1)])
def test_a_model_that_is_not_ready_after_an_answer_is_another_one(
    two: tuple[H2Server, H2Server], watched: Watched, answered: bool, left_out: int
) -> None:
    def answer(peer: Peer, stream: int, _: bytes) -> None:
        begins(peer, stream, message(1) * answered + message(None, error="Request for unknown model: 'inner'"))

    for server in two:
        server.on_infer = answer
    with pytest.raises(NotReadyError) as raised:
        list(watched.model.stream(ONE))
    assert raised.value.retryable is not answered
    assert (watched.left_out(), len(watched.looks)) == (left_out, left_out)


def test_the_callers_deadline_leaves_no_replica_out(two: tuple[H2Server, H2Server], watched: Watched) -> None:
    """It is looked at, since it may hang."""
    for server in two:
        server.on_infer = lambda peer, stream, _: begins(peer, stream, message(1))
    parts = watched.model.stream(ONE, timeout_s=1.0)
    assert next(parts).item() == 1
    with pytest.raises(TimedOutError, match=r"within 1.0 s"):
        next(parts)
    assert (watched.left_out(), len(watched.looks)) == (0, 1)


def test_the_time_of_a_look_is_taken_off_the_streams(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e6]

    def call(step: Step) -> Any:
        """Each call takes a second."""
        now[0] += 1
        return watched.model._connection.call(step._replace(timeout_s=None, deadline=None), "m")

    for replica in watched.replicas._all:
        replica.error = ServerUnreachableError()
    monkeypatch.setattr("clients.steps.time", SimpleNamespace(monotonic=lambda: now[0]))
    step = run(watched.replicas.stream({"x": ONE}, Terms(timeout_s=5)), call)
    assert (step.timeout_s, step.left_s()) == (5, 3)


def test_hooks_see_a_stream_that_was_left_as_answered(h2: H2Server) -> None:
    h2.version, seen = "2.59.0", list[Response]()
    h2.on_infer = lambda peer, stream, _: begins(peer, stream, message(1))
    hooks: Hooks = {"response": [seen.append]}

    async def leave() -> None:
        model = AsyncModel("m", url=h2.url, transport="grpc", hooks=hooks)
        async with model, contextlib.aclosing(model.stream(ONE)) as parts:
            assert (await anext(parts)).item() == 1

    model = Model("m", url=h2.url, transport="grpc", hooks=hooks)
    with model, contextlib.closing(model.stream(ONE)) as parts:
        assert next(parts).item() == 1
    asyncio.run(leave())
    assert [response.error for response in seen] == [None, None]
