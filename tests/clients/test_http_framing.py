"""Answers of HTTP in any form and in any pieces, right and broken, without a connection."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from raw_server import answer, infer_body

from clients import ClientError
from clients._address import addresses
from clients._http_answer import HEAD_BYTES, HttpAnswer, HttpError, TooLargeError
from clients._http_format import HttpFormat

FORMAT = HttpFormat(addresses("http://localhost:8000", "http")["http"], "m", "")
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = answer(ROWS)
LIMIT = 1 << 20


def received(into: HttpAnswer, pieces: Sequence[bytes], *, ends: bool = False) -> HttpAnswer:
    """Give the pieces to an answer, as a socket does: never more at once than there is room for."""
    for piece in pieces:
        while piece:
            room = into.room()
            count = min(len(piece), len(room))
            room[:count] = piece[:count]
            into.received(count)
            piece = piece[count:]
    if ends and not into.complete:
        into.ended()
    return into


def read(into: HttpAnswer) -> dict[str, Any]:
    assert into.complete
    outputs: dict[str, Any] = FORMAT._outputs(into)
    return outputs


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    """The content in pieces."""
    ends = sorted({min(place, len(content)) for place in places} | {0, len(content)})
    return [content[begin:end] for begin, end in itertools.pairwise(ends)]


def chunked(content: bytes, places: Sequence[int], *, trailer: bool = False) -> bytes:
    """The content in chunks of HTTP."""
    chunks = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in cut(content, places) if piece)
    return chunks + b"0\r\n" + (b"X-Sum: 1\r\n" if trailer else b"") + b"\r\n"


def test_an_answer_may_be_split_at_every_byte() -> None:
    body, length = infer_body([("y", "FP32", ROWS.shape, ROWS.tobytes())])
    head = f"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: {length}\r\n".encode()
    in_chunks = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, [3, 40], trailer=True)
    to_the_end = head + b"Connection: close\r\n\r\n" + body
    kept = HttpAnswer(LIMIT)  # knows the head from the second time on
    for content, ends in ((GOOD, False), (in_chunks, False), (to_the_end, True)):
        for place in range(1, len(content)):
            for into in (kept, HttpAnswer(LIMIT)):
                into.reset()
                np.testing.assert_array_equal(read(received(into, cut(content, [place]), ends=ends))["y"], ROWS)
                assert into.keeps is not ends
        into = received(HttpAnswer(LIMIT), [bytes([byte]) for byte in content], ends=ends)
        np.testing.assert_array_equal(read(into)["y"], ROWS)


@pytest.mark.parametrize("spare", [0, -1])
def test_small_answers_have_a_limit_too(spare: int) -> None:
    into = HttpAnswer(len(GOOD.partition(b"\r\n\r\n")[2]) + spare)
    with pytest.raises(TooLargeError) if spare else contextlib.nullcontext():
        np.testing.assert_array_equal(read(received(into, [GOOD]))["y"], ROWS)


places = st.lists(st.one_of(st.integers(0, 700), st.integers(0, 70_000)), max_size=6)
arrays = st.builds(
    lambda shape, dtype, seed: np.asarray(np.random.default_rng(seed).integers(0, 100, shape)).astype(dtype),
    st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.just((70, 200)),
    st.sampled_from(["f4", "f8", "i8", "u1", "f2", "?"]),
    st.integers(0, 9),
)
DATATYPES = {"f4": "FP32", "f8": "FP64", "i8": "INT64", "u1": "UINT8", "f2": "FP16", "b1": "BOOL"}
INTERIM = [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" * 3]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data(), arrays, st.lists(arrays, max_size=3), st.booleans(), places)
def test_an_answer_in_any_form_is_read(
    data: st.DataObject, first: NDArray[Any], others: list[NDArray[Any]], texts: bool, pieces: list[int]
) -> None:
    """Those before "y" move it to any address, and it is aligned nevertheless."""
    named = [(f"o{number}", array) for number, array in enumerate(others)]
    outputs = [(name, DATATYPES[array.dtype.str[1:]], array.shape, array.tobytes()) for name, array in named]
    if texts:
        outputs.append(("t", "BYTES", (2,), b"\0\0\0\0\3\0\0\0abc"))
    outputs.append(("y", DATATYPES[first.dtype.str[1:]], first.shape, first.tobytes()))
    body, length = infer_body(outputs)
    case = data.draw(st.sampled_from([str.lower, str.upper, str.title]))
    lines = [case("Inference-Header-Content-Length") + f":{' ' * data.draw(st.integers(0, 2))}{length}"]
    lines += data.draw(st.lists(st.sampled_from(["X-Empty:", "Date: today", "Vary: \ta"]), max_size=4))
    form = data.draw(st.sampled_from(["length", "chunks", "end"]))
    if form == "length":
        lines.append(f"{case('Content-Length')}: {len(body)}")
    elif form == "chunks":
        lines.append(f"{case('Transfer-Encoding')}: chunked")
        body = chunked(body, data.draw(places), trailer=data.draw(st.booleans()))
    head = "\r\n".join(["HTTP/1.1 200 OK", *data.draw(st.permutations(lines)), "", ""]).encode()
    sent = data.draw(st.sampled_from(INTERIM)) + head + body
    outcome = read(received(HttpAnswer(LIMIT), cut(sent, pieces), ends=form == "end"))["y"]
    np.testing.assert_array_equal(outcome, first)
    assert (outcome.dtype, outcome.flags.aligned, outcome.flags.writeable) == (first.dtype, True, True)


changes = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.one_of(changes, st.integers(0, len(GOOD)), st.binary(max_size=300)), places)
@example(b"HTTP/1.1 200 OK\n\n", [])
@example(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES + b"\r\n\r\n", [])
@example(b"\x15\x03\x03\x00\x02\x02\x46", [])
def test_a_broken_answer_ends_in_an_error_of_the_client(
    broken: list[tuple[int, int]] | int | bytes, pieces: list[int]
) -> None:
    content = bytearray(GOOD)
    if isinstance(broken, list):
        for place, value in broken:
            content[place] = value
    sent = broken if isinstance(broken, bytes) else bytes(content[:broken] if isinstance(broken, int) else content)
    try:
        read(received(HttpAnswer(LIMIT), cut(sent, pieces), ends=True))
    except (ClientError, HttpError, ConnectionError):
        return


@pytest.mark.parametrize("surplus", [b"x", GOOD, b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize("is_split", [False, True])
def test_what_follows_an_answer_belongs_to_no_call(surplus: bytes, is_split: bool) -> None:
    into = received(HttpAnswer(LIMIT), [GOOD, surplus] if is_split else [GOOD + surplus])
    np.testing.assert_array_equal(read(into)["y"], ROWS)
    assert not into.keeps


@pytest.mark.parametrize("form", ["Content-Length: 1048577", "Transfer-Encoding: chunked", "Connection: close"])
def test_an_endless_answer_is_refused_at_its_limit(form: str) -> None:
    head = f"HTTP/1.1 200 OK\r\n{form}\r\n\r\n".encode()
    more = (b"10000\r\n" if "chunked" in form else b"") + b"x" * (1 << 16) + (b"\r\n" if "chunked" in form else b"")
    into = HttpAnswer(LIMIT)
    with pytest.raises(TooLargeError, match="larger than max_answer_bytes=1048576"):
        received(into, itertools.chain([head], itertools.repeat(more, 20)))  # type: ignore[arg-type]
    assert len(into.whole) <= LIMIT + len(more)
