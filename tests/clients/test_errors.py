"""The attributes of an error: status, model, address, and whether the same call may be repeated."""

import asyncio
import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from client_calls import TRANSPORTS, Gate, address

import clients
from clients import (
    AsyncModel,
    ClientError,
    InvalidInputError,
    Model,
    NotReadyError,
    RejectedError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
    TransportName,
)
from clients.errors import explained
from serve.launcher import Server

ONE = np.ones((1, 1), np.float32)
CLASSES = [kind for name in clients.__all__ if isinstance(kind := getattr(clients, name), type)]
ERRORS = [kind for kind in CLASSES if issubclass(kind, ClientError)]


def data(error: BaseException) -> tuple[Any, ...]:
    assert isinstance(error, ClientError)
    return (type(error), str(error), error.status, error.text, error.model, error.url, error.retryable)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_copied_or_pickled_error_keeps_its_attributes(kind: type[ClientError]) -> None:
    error = kind("words", status="UNAVAILABLE", text="said", model="m", url="h:1", retryable=not kind.retryable)
    assert data(error) == (kind, "words", "UNAVAILABLE", "said", "m", "h:1", not kind.retryable)
    for same in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert data(same) == data(error)
    assert data(kind("words")) == (kind, "words", None, "", None, None, kind.retryable)


@pytest.mark.parametrize(
    ("status", "text", "sent", "kind", "retryable"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses", False, ServerUnreachableError, True),
        ("UNAVAILABLE", "Socket closed", True, ServerUnreachableError, False),
        ("UNAVAILABLE", "Request for unknown model: 'm' has no available versions", True, NotReadyError, True),
        ("NOT_FOUND", "Request for unknown model: 'm' is not found", True, NotReadyError, True),
        ("UNAVAILABLE", "no healthy upstream", True, NotReadyError, True),
        ("UNAVAILABLE", "upstream connect error or disconnect/reset", True, ServerUnreachableError, False),
        ("UNAVAILABLE", "Received http2 header with status: 503", True, ServerUnreachableError, False),
        ("UNAVAILABLE", "[request id: 1] Exceeds maximum queue size", True, RejectedError, True),
        ("RESOURCE_EXHAUSTED", "too many", True, RejectedError, True),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (1 vs. 0)", True, ServerFailureError, False),
        ("UNAVAILABLE", "Request timeout expired", True, TimedOutError, True),
        ("UNAVAILABLE", "upstream request timeout", True, TimedOutError, False),
        ("DEADLINE_EXCEEDED", "no answer within 1 s", True, TimedOutError, False),
        ("INVALID_ARGUMENT", "unexpected shape", True, InvalidInputError, False),
        ("INTERNAL", "the model failed", True, ServerFailureError, False),
        ("UNKNOWN", "something", True, ServerFailureError, False),
    ],
)
def test_only_a_request_that_did_not_run_may_be_sent_again(
    status: str, text: str, sent: bool, kind: type[ClientError], retryable: bool
) -> None:
    error = explained(status, text, "h:1", "m", sent=sent)
    assert data(error) == (kind, str(error), status, text, "m", "h:1", retryable)


@pytest.mark.server
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("blocking", [True, False])
def test_errors_of_real_calls_have_kind_status_and_text(
    client_server: Server, transport: TransportName, blocking: bool, gate: Gate
) -> None:
    url = address(client_server, transport)

    def ended(name: str, x: Any, *, url: str = url, **terms: Any) -> tuple[Any, ...]:
        def wait() -> None:
            with Model(name, url=url, transport=transport) as model:
                model.predict(x, **terms)

        async def wait_async() -> None:
            async with AsyncModel(name, url=url, transport=transport) as model:
                await model.predict(x, **terms)

        with pytest.raises(ClientError) as raised:
            wait() if blocking else asyncio.run(wait_async())
        kind, _, status, text, model, where, retryable = data(raised.value)
        assert (model, where) == (name, url)
        return kind, status, text, retryable

    assert ended("picky", np.ones((9, 1), np.float32)) == (InvalidInputError, None, "", False)
    assert ended("picky", ONE, timeout_s=-1) == (InvalidInputError, None, "", False)
    message = "no roots of negative numbers"
    assert ended("picky", -ONE) == (ServerFailureError, "INTERNAL", message, False)
    assert ended("absent", ONE)[::3] == (NotReadyError, True)
    threading.Timer(1, gate.open).start()  # a client that closes waits for the answer
    late = ended("slow", gate.rows(), timeout_s=0.1)
    assert late == (TimedOutError, "DEADLINE_EXCEEDED", "no answer within 0.1 s", False)
    gone = ended("picky", ONE, url="127.0.0.1:1")
    assert (*gone[:2], gone[3]) == (ServerUnreachableError, "UNAVAILABLE", True)
