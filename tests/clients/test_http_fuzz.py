"""Answers of HTTP in any form and in any pieces, right and broken, against a server that sends what it is given."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from processes import wait_until
from raw_server import RawServer, Request, answer, infer_body, raw_server

from clients import AsyncModel, ClientError, Model
from clients._http_answer import HEAD_BYTES

Call = Callable[[], Any]
ROW = np.ones((1, 3), np.float32)
LIMIT_S = 5
TEXTS = [b"", b"a", b"bcd"]


class Server:
    """Sends `pieces` for each request, with `closes` and then ends the connection."""

    def __init__(self, running: RawServer) -> None:
        self.pieces: list[bytes] = []
        self.closes = self.is_sent = False
        running.script = self.script
        self.running, self.url = running, running.url

    def end(self) -> None:
        """Wait until no connection is left, if they end; else the next request could go out on one just before that."""
        assert not self.closes or wait_until(lambda: self.running.over == self.running.connections, seconds=LIMIT_S)

    def script(self, request: Request) -> bool:
        request.body()
        pieces, closes, self.is_sent = self.pieces, self.closes, False  # the test may set others before this ends
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.0003)
            request.client.sendall(piece)
        self.is_sent = True
        return not closes


@pytest.fixture(scope="module", params=["blocking", "async"])
def asked(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Call]]:
    """The server, and one call to it."""
    with raw_server() as running:
        server = Server(running)
        if request.param == "blocking":
            with Model("m", url=server.url, transport="http", timeout_s=LIMIT_S) as model:
                yield server, lambda: model.predict(ROW)
            return
        with asyncio.Runner() as runner:
            opened = AsyncModel("m", url=server.url, transport="http", timeout_s=LIMIT_S)
            runner.run(opened.__aenter__())
            yield server, lambda: runner.run(opened.predict(ROW))
            runner.run(opened.close())


def cut(content: bytes, places: list[int]) -> list[bytes]:
    """The content in pieces."""
    ends = sorted({min(place, len(content)) for place in places} | {0, len(content)})
    return [content[begin:end] for begin, end in itertools.pairwise(ends)]


def chunked(content: bytes, places: list[int], *, trailer: bool) -> bytes:
    """The content in chunks of HTTP."""
    chunks = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in cut(content, places) if piece)
    return chunks + b"0\r\n" + (b"X-Sum: 1\r\n" if trailer else b"") + b"\r\n"


places = st.lists(st.one_of(st.integers(0, 700), st.integers(0, 70_000)), max_size=6)
arrays = st.builds(
    lambda shape, dtype, seed: np.asarray(np.random.default_rng(seed).integers(0, 100, shape)).astype(dtype),
    st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.just((70, 200)),
    st.sampled_from(["f4", "f8", "i8", "u1", "f2", "?"]),
    st.integers(0, 9),
)
DATATYPES = {"f4": "FP32", "f8": "FP64", "i8": "INT64", "u1": "UINT8", "f2": "FP16", "b1": "BOOL"}


def described(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return DATATYPES[array.dtype.str[1:]], array.shape, array.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.data(), arrays, st.lists(arrays, max_size=3), st.booleans())
def test_an_answer_in_any_form_is_read(
    asked: tuple[Server, Call], data: st.DataObject, first: NDArray[Any], others: list[NDArray[Any]], texts: bool
) -> None:
    server, call = asked
    # Those before "y" move it to any address.
    outputs = [(f"o{number}", *described(array)) for number, array in enumerate(others)]
    if texts:
        outputs.append(("t", "BYTES", (3,), b"".join(len(text).to_bytes(4, "little") + text for text in TEXTS)))
    body, length = infer_body([*outputs, ("y", *described(first))])
    way = data.draw(st.sampled_from(["length", "chunks", "end"]))
    case = data.draw(st.sampled_from([str.lower, str.upper, str.title]))
    lines = [case("Inference-Header-Content-Length") + f":{' ' * data.draw(st.integers(0, 2))}{length}"]
    lines += data.draw(st.lists(st.sampled_from(["X-Empty:", "Date: today", "Server: x y", "Vary: \ta"]), max_size=4))
    if way == "length":
        lines.append(f"{case('Content-Length')}: {len(body)}")
    elif way == "chunks":
        lines.append(f"{case('Transfer-Encoding')}: chunked")
        body = chunked(body, data.draw(places), trailer=data.draw(st.booleans()))
    server.closes = way == "end" or data.draw(st.integers(0, 9)) == 0
    if way == "end" or (server.closes and data.draw(st.booleans())):
        lines.append("Connection: close")
    lines = data.draw(st.permutations(lines))
    interim = data.draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" * 3])
    )
    sent = interim + "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + body
    server.pieces = cut(sent, data.draw(places))
    received = call()
    server.end()
    np.testing.assert_array_equal(received, first)
    assert (received.dtype, received.flags.aligned, received.flags.writeable) == (first.dtype, True, True)


GOOD = answer(np.ones((2, 3), np.float32))
changes = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(st.one_of(changes, st.integers(0, len(GOOD)), st.binary(max_size=300)), places)
@example(b"HTTP/1.1 200 OK\n\n", [])
@example(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES + b"\r\n\r\n", [])
@example(b"\x15\x03\x03\x00\x02\x02\x46", [])
def test_a_broken_answer_ends_in_an_error_of_the_client(
    asked: tuple[Server, Call], broken: list[tuple[int, int]] | int | bytes, pieces: list[int]
) -> None:
    server, call = asked
    content = bytearray(GOOD)
    if isinstance(broken, list):
        for place, value in broken:
            content[place] = value
    server.pieces = cut(
        broken if isinstance(broken, bytes) else bytes(content[:broken] if isinstance(broken, int) else content), pieces
    )
    server.closes = True
    with contextlib.suppress(ClientError):
        assert isinstance(call(), np.ndarray)
    server.end()


@pytest.mark.parametrize("surplus", [b"x", GOOD, b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize("form", ["length", "chunks"])
def test_what_follows_an_answer_belongs_to_no_call(asked: tuple[Server, Call], surplus: bytes, form: str) -> None:
    server, call = asked
    body, length = infer_body([("y", "FP32", (1,), np.float32(7).tobytes())])
    head = f"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: {length}\r\n"
    if form == "length":
        seven = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    else:
        seven = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked(body, [9], trailer=False)
    server.closes = False
    for pieces in ([seven + surplus], [seven, surplus], [seven[:-1], seven[-1:] + surplus]):
        server.pieces = pieces
        assert call().tolist() == [7]
        assert wait_until(lambda: server.is_sent, seconds=LIMIT_S)  # now the surplus has come
        server.pieces = [GOOD]
        assert call().tolist() == [[1] * 3] * 2
