"""Calls of gRPC through the proxy that the environment names."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from h2_server import H2Server

from clients import AsyncModel, Model, ServerUnreachableError, proxies

ROW = np.arange(3, dtype=np.float32)[:, None]
ELSEWHERE = "127.0.0.2"
"""Not a name of this machine for clients, so that they ask the proxy."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*proxies.NAMES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


class Proxy:
    """Answers each CONNECT with `status`, and forwards to `target`; `asked` holds the heads."""

    def __init__(self, listener: socket.socket, target: str) -> None:
        host, _, port = target.partition(":")
        self.listener, self.target, self.status, self.asked = listener, (host, int(port)), "200 OK", list[str]()
        self.url = f"127.0.0.1:{listener.getsockname()[1]}"

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=self.listener.accept()[:1], daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.asked.append(head.decode())
        client.sendall(f"HTTP/1.1 {self.status}\r\nVia: test\r\n\r\n".encode())
        server = socket.create_connection(self.target)
        threading.Thread(target=forward, args=(server, client), daemon=True).start()
        forward(client, server)


def forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(1 << 16):
            sink.sendall(received)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(h2: H2Server) -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Proxy(listener, h2.url)
        threading.Thread(target=running.accept, daemon=True).start()
        yield running
        listener.shutdown(socket.SHUT_RDWR)


def both(url: str) -> list[Any]:
    """The answers, or the errors, of `Model` and of `AsyncModel`."""

    def block() -> Any:
        with Model("m", url=url) as model:
            return model.predict(ROW)

    async def predict() -> Any:
        async with AsyncModel("m", url=url) as model:
            return await model.predict(ROW)

    ends: list[Any] = []
    for call in (block, lambda: asyncio.run(predict())):
        try:
            ends.append(call())
        except ServerUnreachableError as error:
            ends.append(error)
    return ends


def test_calls_go_through_the_proxy(h2: H2Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:pass%20word@{proxy.url}")
    elsewhere = f"{ELSEWHERE}:{h2.url.partition(':')[2]}"
    for answer in both(elsewhere):
        np.testing.assert_array_equal(answer, 2 * ROW)
    assert len(proxy.asked) == 2
    for head in proxy.asked:
        assert head.startswith(f"CONNECT {elsewhere} HTTP/1.1\r\nHost: {elsewhere}\r\n")
        assert "Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in head
    for answer in both(h2.url):  # this machine is not behind it
        np.testing.assert_array_equal(answer, 2 * ROW)
    assert len(proxy.asked) == 2


def test_a_proxy_that_refuses(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy.url)
    proxy.status = "407 Proxy Authentication Required"
    for error in both(f"{ELSEWHERE}:8001"):
        assert isinstance(error, ServerUnreachableError)
        assert "the proxy 127.0.0.1 refused: HTTP/1.1 407 Proxy Authentication Required" in str(error)
