"""Answers that are not Triton's, with any status: a proxy's page, and answers that were cut or changed."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from clients import (
    AsyncModel,
    ClientError,
    Model,
    NotReadyError,
    RejectedError,
    ServerFailureError,
    ServerUnreachableError,
    TimedOutError,
)

ONE = np.ones((1, 1), np.float32)
PAGE = b"<html><body>Sign in to continue</body></html>"
CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
}
DATA = np.ones((1, 1), np.float32).tobytes()


def head(**changes: Any) -> bytes:
    output = {"name": "y", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}} | changes
    return json.dumps({"model_name": "m", "outputs": [{k: v for k, v in output.items() if v is not None}]}).encode()


class Between(BaseHTTPRequestHandler):
    """A server in the place of a proxy, whose answers each test sets."""

    protocol_version = "HTTP/1.1"
    config: tuple[int, bytes]
    answer: tuple[int, str | None, bytes]

    def do_GET(self) -> None:
        self.reply(*type(self).config, None)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, length, body = type(self).answer
        self.reply(status, body, length)

    def reply(self, status: int, body: bytes, length: str | None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if length is not None:
            self.send_header("Inference-Header-Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


Proxy = tuple[type[Between], str]


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    class Handler(Between):
        config, answer = (200, json.dumps(CONFIG).encode()), (200, str(len(head())), head() + DATA)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Handler, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def between() -> Iterator[Proxy]:
    with serving() as served:
        yield served


def ends(url: str) -> list[Any]:
    """The outcomes of a blocking call, an asynchronous one, a coalescing one, and two that are merged."""

    async def ask(count: int, *, coalesce: bool) -> list[Any]:
        async with AsyncModel("m", url=url, transport="http", coalesce=coalesce) as model:
            return await asyncio.gather(*(model.predict(ONE) for _ in range(count)), return_exceptions=True)

    attempts: list[Callable[[], list[Any]]] = [
        lambda: [Model("m", url=url, transport="http").predict(ONE)],
        lambda: asyncio.run(ask(1, coalesce=False)),
        lambda: asyncio.run(ask(1, coalesce=True)),
        lambda: asyncio.run(ask(2, coalesce=True)),
    ]
    answers: list[Any] = []
    for attempt in attempts:
        try:
            answers += attempt()
        except ClientError as error:
            answers.append(error)
    return answers


def test_unknown_fields_of_a_configuration_are_ignored(between: Proxy) -> None:
    handler, url = between
    for more in ({}, {"a_setting_of_a_newer_server": {"value": 1}}):
        handler.config = 200, json.dumps(CONFIG | more).encode()
        with Model("m", url=url, transport="http") as model:
            assert model.predict(ONE).tolist() == [[1.0]]


@pytest.mark.parametrize("body", [PAGE, b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"input": 3}'])
def test_a_page_in_place_of_a_configuration_is_an_error(between: Proxy, body: bytes) -> None:
    handler, url = between
    handler.config = 200, body
    answers = ends(url)
    assert [type(end) for end in answers] == [ServerFailureError] * 4
    assert "is not what Triton sends" in str(answers[0])
    assert (answers[0].status, answers[0].model, answers[0].url, answers[0].retryable) == ("UNKNOWN", "m", url, False)


@pytest.mark.parametrize(
    ("length", "body"),
    [
        (None, PAGE),
        ("10", PAGE),
        (None, b""),
        (None, b'{"model_name": "m", "outputs": 5}'),
        (None, b'{"model_name": 5, "outputs": []}'),
        (None, b'{"model_name": "m", "outputs": []}'),
        ("x", head() + DATA),
        ("-1", head() + DATA),
        ("99999999999999999999", head() + DATA),
        (str(len(head()) - 1), head() + DATA),
        (str(len(head()) + 1), head() + DATA),
        (None, head() + DATA),
        (str(len(head())), head()),
        (str(len(head())), head() + DATA[:3]),
        (str(len(head())), head() + DATA + b"x"),
        *(
            (str(len(changed)), changed + DATA)
            for changed in (
                head(name=None),
                head(datatype="FP31"),
                head(datatype="BYTES"),
                head(datatype="FP64"),
                head(shape=None),
                head(shape=[2, 1]),
                head(shape=[-1, -1]),
                head(shape=[1 << 64]),
                head(shape=["1"]),
                head(parameters=None),
                head(parameters={"binary_data_size": -4}),
                head(parameters={"binary_data_size": "4"}),
                head(parameters={"binary_data_size": 1 << 70}),
            )
        ),
    ],
)
def test_an_answer_that_was_cut_or_changed_is_an_error(between: Proxy, length: str | None, body: bytes) -> None:
    handler, url = between
    handler.answer = 200, length, body
    answers = ends(url)
    assert [type(end) for end in answers] == [ServerFailureError] * 5, answers
    assert {(end.model, end.url, end.retryable) for end in answers} == {("m", url, False)}


@pytest.mark.parametrize("stops", [False, True])
def test_a_request_that_may_have_run_is_not_sent_again(
    between: Proxy, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    handler, url = between
    requests: list[bytes] = []

    def close(self: Between) -> None:
        requests.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.close_connection = True
        if stops:
            assert isinstance(self.server, ThreadingHTTPServer)
            self.server.socket.shutdown(socket.SHUT_RDWR)

    with Model("m", url=url, transport="http") as model:
        model.predict(ONE)
        monkeypatch.setattr(handler, "do_POST", close)
        with pytest.raises(ServerUnreachableError) as failure:
            model.predict(ONE)
    assert (len(requests), failure.value.retryable) == (1, False)


def test_the_text_of_a_model_error_is_not_read_as_a_missing_model(between: Proxy) -> None:
    handler, url = between
    handler.answer = 500, None, b'{"error": "the key of an unknown model is not answers"}'
    assert [(type(end), end.retryable) for end in ends(url)] == [(ServerFailureError, False)] * 5


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotReadyError),
        (429, RejectedError),
        (500, ServerFailureError),
        (503, ServerUnreachableError),
        (504, TimedOutError),
    ],
)
def test_a_page_with_an_error_status_is_an_error_by_its_status(
    between: Proxy, status: int, kind: type[ClientError]
) -> None:
    handler, url = between
    handler.answer = status, None, PAGE * 100
    answers = ends(url)
    assert [type(end) for end in answers] == [kind] * 5
    # The request may have reached Triton behind the proxy; one that was rejected has not.
    assert {end.retryable for end in answers} == {kind in (NotReadyError, RejectedError)}
    assert all(len(str(end)) < 500 for end in answers)
    assert not any("gRPC server" in str(end) for end in answers)
