"""What a client of HTTP/2 makes of frames that are rare, or that break the rules, as bytes without a connection."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from clients import ClientError, grpc_wire
from clients.http2 import Http2
from clients.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LARGEST,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Error,
    frame,
)
from clients.http2_sending import Call

MOST_STREAMS, WINDOW, FRAME_BYTES = 3, 4, 5
OK = b"\x88"
"""The head that is `:status: 200` alone."""


def setting(name: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, name.to_bytes(2) + value.to_bytes(4))


def feed(client: Http2, content: bytes) -> None:
    client.room()[: len(content)] = content
    client.received(len(content))


def opened(content: bytes = frame(SETTINGS, 0, 0)) -> Http2:
    client = Http2()
    feed(client, content)
    client.out.clear()
    return client


def asked(client: Http2, *pieces: bytes | memoryview) -> Call:
    call = Call(b"", pieces or [b"request"], lambda _: None)
    client.ask(call)
    return call


@pytest.mark.parametrize(
    "content",
    [
        setting(FRAME_BYTES, 0),
        setting(FRAME_BYTES, 1 << 24),
        setting(WINDOW, 1 << 31),
        frame(SETTINGS, 0, 0, b"\0\3\0\0\0"),
        frame(SETTINGS, 0, 1),
        frame(PING, 0, 0, b"1234567"),
        frame(PING, 0, 1, b"12345678"),
        frame(RST_STREAM, 0, 1, b"\0\0\0"),
        frame(RST_STREAM, 0, 0, bytes(4)),
        frame(WINDOW_UPDATE, 0, 0, bytes(5)),
        frame(GOAWAY, 0, 0, bytes(7)),
        frame(GOAWAY, 0, 1, bytes(8)),
        frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + OK),
        frame(CONTINUATION, END_HEADERS, 1, OK),
        frame(HEADERS, 0, 1, OK) + frame(CONTINUATION, END_HEADERS, 3, OK),
        frame(HEADERS, 0, 1, OK) + frame(HEADERS, END_HEADERS, 1, OK),
        frame(HEADERS, 0, 1, OK) + frame(DATA, 0, 1, OK),
        frame(HEADERS, 0, 1, OK) + frame(200, 0, 1, OK),
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\2" + OK),
        frame(HEADERS, END_HEADERS | PRIORITY, 1, OK),
        frame(HEADERS, END_HEADERS, 0, OK + b"\0\1a\1b"),
        frame(DATA, PADDED, 1, b"\3ab"),
        frame(DATA, PADDED, 1),
        frame(DATA, END_STREAM, 0, b"ab"),
    ],
)
def test_frames_that_break_the_rules(content: bytes) -> None:
    client = opened()
    call = asked(client)
    asked(client)
    with pytest.raises(Http2Error):
        feed(client, content)
    assert not call.is_over
    assert not call.body.content()


@pytest.mark.parametrize(
    "content",
    [
        frame(200, 255, 1, b"unknown"),
        frame(2, 0, 1, bytes(5)),  # PRIORITY
        frame(SETTINGS, ACK, 0),
        setting(99, 5),
        frame(DATA, END_STREAM, 99, b"ab"),
        frame(RST_STREAM, 0, 99, bytes(4)),
        frame(WINDOW_UPDATE, 0, 99, bytes(4)),
    ],
)
def test_frames_that_are_passed_over(content: bytes) -> None:
    client = opened()
    call = asked(client)
    feed(client, content + frame(HEADERS, END_HEADERS | END_STREAM, 1, OK))
    assert call.head == {":status": "200"}
    assert call.is_over


def test_the_first_bit_of_a_stream_is_passed_over() -> None:
    client, first = opened(), 1 << 31
    call = asked(client)
    content = frame(HEADERS, END_HEADERS, first | 1, OK) + frame(DATA, 0, first | 1, b"ab")
    feed(client, content + frame(HEADERS, END_HEADERS | END_STREAM, first | 1, OK))
    assert (call.body.content(), call.is_over) == (b"ab", True)


def test_a_reset_call_makes_room_for_one_that_waits() -> None:
    client = opened(setting(MOST_STREAMS, 1))
    first, second = asked(client), asked(client)
    assert (first.stream, second.stream) == (1, 0)
    client.out.clear()
    feed(client, frame(RST_STREAM, 0, 1, (2).to_bytes(4)))
    assert (first.is_over, second.stream) == (True, 3)
    assert b"".join(client.out).endswith(b"request")


def test_a_connection_that_takes_no_calls_ends_them_at_once() -> None:
    client = opened(frame(SETTINGS, 0, 0) + frame(GOAWAY, 0, 0, LARGEST.to_bytes(4) + bytes(4)))
    call = asked(client)
    assert (call.is_over, call.is_unknown, client.out, client.all()) == (True, True, [], [])


def test_calls_that_wait_end_when_all_streams_are_used() -> None:
    client = opened(setting(MOST_STREAMS, 1))
    client._stream = LARGEST - 2
    first, second = asked(client), asked(client)
    feed(client, frame(HEADERS, END_HEADERS | END_STREAM, LARGEST - 2, OK))
    assert (first.is_over, first.error) == (True, None)
    assert (second.is_over, second.is_unknown, client.takes) == (True, True, False)


def test_a_text_that_is_not_utf_8_is_still_an_answer() -> None:
    client = opened()
    call = asked(client)
    block = Encoder().encode([(":status", "200"), ("grpc-status", "13"), (b"grpc-message", b"no\xffpe")])
    feed(client, frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
    assert call.head["grpc-message"] == "no\ufffdpe"


@pytest.mark.parametrize("leave", [Http2.reset, Http2.keep])
def test_bytes_of_a_caller_who_has_left_do_not_change(leave: Callable[[Http2, Call], None]) -> None:
    client = opened()
    array = np.zeros(100_000, np.uint8)
    call = asked(client, array.data)
    assert call.left == 100_000 - 65_535
    leave(client, call)
    array[:] = 1
    feed(client, b"".join(frame(WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4)) for stream in (0, 1)))
    sent = [piece for piece in client.out if len(piece) > 100]
    assert sum(map(len, sent)) == (65_535 if leave is Http2.reset else 100_000)
    assert not any(map(any, sent))


@pytest.mark.parametrize("status", ["²", "00", "17", "-1", "9" * 5_000, "", "OK"])
def test_a_status_that_is_none(status: str) -> None:
    call = Call(b"", [], lambda _: None)
    call.head = {":status": "200", "grpc-status": status}
    with pytest.raises(ClientError) as raised:
        grpc_wire.read(call, "ModelInfer", "here:1", "m")
    assert raised.value.status == "UNKNOWN"


texts = st.sampled_from(["a", "b", "0", "x" * 90])
heads = st.lists(st.tuples(texts, texts, st.booleans()), min_size=1, max_size=5)
answers = st.lists(st.tuples(heads, st.integers(0, 9), st.integers(0, 300)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=300)
@given(answers)
def test_heads_that_are_remembered_mean_what_they_meant(answers: list[Any]) -> None:
    """Against a decoder that remembers none, with a table that overflows and changes its size."""
    client, encoder, decoder = opened(), Encoder(), Decoder()
    for fields, changes, size in answers:
        if changes == 0:
            encoder.header_table_size = size
        call = asked(client)
        block = encoder.encode([(name, value, secret) for name, value, secret in fields])
        feed(client, frame(HEADERS, END_HEADERS | END_STREAM, call.stream, block))
        assert call.head == {str(name): str(value) for name, value in decoder.decode(block)}
