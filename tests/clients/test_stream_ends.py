"""How a stream of answers ends, from a server on the h2 library: errors, a closed model, a fork, the program's exit."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from h2_server import HEAD, H2Server, Peer, message

from clients import (
    AsyncModel,
    ClientError,
    ClosedError,
    Model,
    NotReadyError,
    RejectedError,
    ServerFailureError,
    cancelling,
)

ROOT = Path(__file__).parents[2]
ONE = np.ones((1, 1), np.float32)
LIMIT_S = 60


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
def test_a_stream_without_its_last_answer_is_an_error(h2: H2Server, call: Calling) -> None:
    h2.on_infer = sends(message(1) + message(2))
    parts, error = call(h2.url)
    assert (parts, type(error)) == ([1, 2], ServerFailureError)
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
        begins(peer, stream, message(1) * came)

    async def scenario() -> None:
        async with AsyncModel("m", url=h2.url, transport="grpc") as model:
            stream = model.stream(ONE)
            assert (await anext(stream)).item() == 1
        with pytest.raises(ClosedError):
            await asyncio.wait_for(anext(stream), LIMIT_S)

    h2.on_infer = answer
    asyncio.run(scenario())


BEGIN = """
import asyncio, atexit, sys
import numpy as np
from clients import AsyncModel, Model
X = np.ones((1, 1), np.float32)
model = {kind}("m", url=sys.argv[1], transport="grpc")
"""
PROGRAMS = {
    "a global": "model.__enter__(); stream = model.stream(X); print(next(stream).item())",
    "a global of a loop": """
async def begin():
    global stream
    await model.__aenter__()
    stream = model.stream(X)
    print((await anext(stream)).item())
asyncio.run(begin())
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
def test_a_program_ends_with_a_stream(h2: H2Server, program: str, version: str) -> None:
    """The server sends the second answer half a second after the first, and no other."""
    h2.version = version

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        begins(peer, stream, message(1))
        threading.Timer(0.5, lambda: rest(peer, stream)).start()

    def rest(peer: Peer, stream: int) -> None:
        if stream not in peer.resets:
            ends(peer, stream, message(2, final=True))

    h2.on_infer = answer
    text = BEGIN.format(kind="AsyncModel" if "loop" in program else "Model") + PROGRAMS[program]
    done = subprocess.run(
        [sys.executable, "-c", text, h2.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")
    resets = [stream for peer in h2.peers for stream in peer.resets]
    assert version == "2.59.0" or not resets
