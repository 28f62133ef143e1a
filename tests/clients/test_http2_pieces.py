"""Answers of gRPC on HTTP/2 in any pieces, large and broken ones too, as bytes that the h2 library makes."""

import itertools

import numpy as np
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2_server import HEAD
from hypothesis import given, settings
from hypothesis import strategies as st

from clients import ServerFailureError, grpc_wire
from clients.grpc_body import LARGE_BYTES
from clients.http2 import Http2
from clients.http2_heads import field
from clients.http2_sending import Call
from clients.line import AnswerError


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
