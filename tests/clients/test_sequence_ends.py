"""What leaving a sequence sends and raises, at a server on the h2 library that refuses its end or never answers it."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from h2_server import CONFIG, H2Server, Peer, double

from clients import AsyncModel, ClientError, Model, ServerFailureError, TimedOutError
from clients import protocol as pb

ONE = np.ones((1, 1), np.float32)
START, END = "sequence_start", "sequence_end"
Calls = Callable[..., ClientError | None]
Answering = Callable[[Peer, int, bytes], None]


class Sequenced:
    """Doubles in a sequence, but for the last request, which `at_end` takes; `flags` are those that came."""

    def __init__(self, at_end: Answering, begins: Answering = double) -> None:
        self.flags, self._at_end, self._begins = list[list[str]](), at_end, begins

    def __call__(self, peer: Peer, stream: int, body: bytes) -> None:
        parameters = pb.ModelInferRequest.FromString(body).parameters
        flags = [name for name in (START, END) if parameters[name].bool_param]
        self.flags.append(flags)
        (self._at_end if END in flags else self._begins)(peer, stream, body)


def refuse(peer: Peer, stream: int, _: bytes) -> None:
    peer.refuse(stream, 13, "must specify the START flag")


def ignore(peer: Peer, stream: int, _: bytes) -> None:
    """Give no answer."""


@pytest.fixture
def server(h2: H2Server) -> H2Server:
    """It has a sequence batcher, and survives cancellations."""
    h2.config = pb.ModelConfig(sequence_batching={})
    h2.config.MergeFrom(CONFIG)
    h2.version = "2.59.0"
    return h2


def blocking(url: str, ends: bool, timeout_s: float | None = None) -> ClientError | None:
    """The error of a last request, or of leaving a sequence that had none."""
    with Model("m", url=url, transport="grpc") as model:
        try:
            with model.sequence() as sequence:
                assert sequence.predict(ONE, timeout_s=timeout_s).item() == 2
                if ends:
                    sequence.predict(ONE, end=True)
        except ClientError as error:
            return error
    return None


def awaiting(url: str, ends: bool, timeout_s: float | None = None) -> ClientError | None:
    """The same of `AsyncModel`."""

    async def call() -> ClientError | None:
        async with AsyncModel("m", url=url, transport="grpc") as model:
            try:
                async with model.sequence() as sequence:
                    assert (await sequence.predict(ONE, timeout_s=timeout_s)).item() == 2
                    if ends:
                        await sequence.predict(ONE, end=True)
            except ClientError as error:
                return error
        return None

    return asyncio.run(call())


BOTH = pytest.mark.parametrize("call", [blocking, awaiting])


@BOTH
def test_a_sequence_whose_first_request_was_late_is_ended(server: H2Server, call: Calls) -> None:
    """The server may have begun it, and would keep its slot."""
    server.on_infer = sequenced = Sequenced(double, begins=ignore)
    assert type(call(server.url, False, 0.1)) is TimedOutError
    assert sequenced.flags == [[START], [END]]


@BOTH
def test_a_sequence_that_the_server_has_forgotten_may_be_left(server: H2Server, call: Calls) -> None:
    server.on_infer = sequenced = Sequenced(refuse)
    assert call(server.url, False) is None
    assert sequenced.flags == [[START], [END]]


@BOTH
def test_a_last_request_that_fails_is_not_made_again(server: H2Server, call: Calls) -> None:
    server.on_infer = sequenced = Sequenced(refuse)
    assert type(call(server.url, True)) is ServerFailureError
    assert sequenced.flags == [[START], [END]]


@BOTH
def test_leaving_a_sequence_does_not_wait_for_ever(
    server: H2Server, call: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.sequences.CLOSE_S", 0.1)
    server.on_infer = sequenced = Sequenced(ignore)
    assert call(server.url, False) is None
    assert sequenced.flags == [[START], [END]]
