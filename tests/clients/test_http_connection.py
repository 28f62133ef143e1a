"""The connections of HTTP: kept, closed, answered early, left by their callers, and full of large tensors."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from processes import wait_until
from raw_server import RawServer, Request, answer, echo, raw_server, whole

from clients import AsyncModel, Model, ServerFailureError, ServerUnreachableError, TimedOutError, TransportName
from clients._http import HttpSocket
from clients._in_flight import MOST_ABANDONED

HTTP: TransportName = "http"
ONE = np.ones((1, 1), np.float32)
LARGE = np.arange(25_000_000, dtype=np.float32)[None]
"""100 MB."""

Predict = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Predict]:
    """The call of a model of either kind."""
    if kind == "async":
        async with AsyncModel("m", url=url, transport=HTTP, timeout_s=30) as model:
            yield model.predict
    else:
        with Model("m", url=url, transport=HTTP, timeout_s=30) as blocking:
            yield lambda *arrays, **terms: asyncio.to_thread(blocking.predict, *arrays, **terms)


KINDS = pytest.mark.parametrize("kind", ["blocking", "async"])


def run(scenario: Callable[[RawServer], Awaitable[None]], script: Callable[[Request], bool] = echo) -> None:
    with raw_server(script) as server:
        asyncio.run(scenario(server))  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    """Wait, while the loop goes on."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


@KINDS
def test_one_connection_carries_one_call_after_another(kind: str) -> None:
    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            for number in range(20):
                assert (await predict(number * ONE)).item() == number
            assert server.connections == 1
        await until(lambda: server.ended == [0])

    run(scenario)


@KINDS
def test_a_connection_that_the_server_wants_closed_is_not_used_again(kind: str) -> None:
    def closing(request: Request) -> bool:
        request.client.sendall(answer(request.tensor(), "Connection: close"))
        return True

    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            for number in range(3):
                assert (await predict(number * ONE)).item() == number
            assert server.connections == 3
            await until(lambda: len(server.ended) == 3)

    run(scenario, closing)


@KINDS
@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_ends_between_calls_is_replaced(kind: str, reset: bool) -> None:
    def closing(request: Request) -> bool:
        request.client.sendall(answer(request.tensor()))
        if reset:
            request.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return False

    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            for number in range(3):
                assert (await predict(number * ONE)).item() == number
                # The loop stands still, as for a program that computes.
                assert wait_until(lambda number=number: server.over > number, seconds=5)  # type: ignore[misc]
        assert server.connections == 3

    run(scenario, closing)


@KINDS
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", answer(ONE)[:-1]])
def test_a_connection_that_ends_in_the_middle_is_an_error_that_may_have_run(kind: str, sent: bytes) -> None:
    def breaking(request: Request) -> bool:
        if request.tensor().item() < 0:
            request.client.sendall(sent)
            return False
        return echo_of(request)

    def echo_of(request: Request) -> bool:
        request.client.sendall(answer(ONE))
        return True

    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            for value in (-1, 1, -1, 1):  # on a new connection, and on a kept one
                if value > 0:
                    assert (await predict(value * ONE)).item() == 1
                    continue
                with pytest.raises(ServerUnreachableError) as failure:
                    await predict(value * ONE)
                assert (failure.value.status, failure.value.retryable) == ("UNAVAILABLE", False)
        assert server.connections == 3

    run(scenario, breaking)


@KINDS
@pytest.mark.parametrize("then", ["waits", "closes", "resets"])
def test_an_error_before_all_is_sent_is_the_error_of_the_call(kind: str, then: str) -> None:
    ended = threading.Event()

    def refuse(request: Request) -> bool:
        if request.length() < 1_000_000:
            return echo(request)
        request.client.sendall(whole(413, b'{"error": "too large for this proxy"}', "Connection: close"))
        if then == "waits":
            ended.wait(20)
        elif then == "resets":
            request.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return False

    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            for _ in range(3):
                with pytest.raises((ServerFailureError, ServerUnreachableError)) as failure:
                    await predict(LARGE)
                if then == "waits":
                    assert failure.value.text == "too large for this proxy"
                # A reset can overtake the answer.
                if then == "closes":
                    assert isinstance(failure.value, ServerFailureError)
                assert (await predict(ONE)).item() == 1
        ended.set()

    run(scenario, refuse)


class Holding:
    """Answers ones when `over` is set, and others at once; `begun` counts the ones."""

    def __init__(self) -> None:
        self.over, self.begun = threading.Event(), 0

    def __call__(self, request: Request) -> bool:
        array = request.tensor()
        if array.flat[0] == 1:
            self.begun += 1
            self.over.wait(20)
        request.client.sendall(answer(array))
        return True


def test_the_connection_of_a_cancelled_call_is_never_used_again() -> None:
    holding = Holding()

    async def scenario(server: RawServer) -> None:
        async with AsyncModel("m", url=server.url, transport=HTTP, max_in_flight=3) as model:
            left = [asyncio.create_task(model.predict(ONE)) for _ in range(2)]
            await until(lambda: holding.begun == 2)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            assert (await model.predict(0 * ONE)).item() == 0
            # The server still works on both, so they are not ended.
            assert (server.connections, server.ended) == (3, [])
            holding.over.set()
            await until(lambda: len(server.ended) == 2)

    run(scenario, holding)


def test_calls_go_on_after_a_server_has_forgotten_those_whose_callers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients._async_http.LEFT_S", 0.1)
    holding = Holding()

    async def scenario(server: RawServer) -> None:
        async with AsyncModel("m", url=server.url, transport=HTTP) as model:
            left = [asyncio.create_task(model.predict(ONE)) for _ in range(MOST_ABANDONED)]
            await until(lambda: holding.begun == MOST_ABANDONED)
            for task in left:
                task.cancel()
            assert (await model.predict(0 * ONE, timeout_s=5)).item() == 0
        holding.over.set()

    run(scenario, holding)


def test_a_socket_that_another_thread_can_take_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, look, holding = list[Any](), HttpSocket.has_ended, Holding()

    def checked(kept: HttpSocket) -> bool:
        assert kept not in idle
        return look(kept)

    with raw_server(holding) as server, Model("m", url=server.url, transport=HTTP) as model:
        held = threading.Thread(target=model.predict, args=(ONE,))
        held.start()
        assert wait_until(lambda: holding.begun == 1, seconds=5)
        model.predict(0 * ONE)
        monkeypatch.setattr(HttpSocket, "has_ended", checked)
        idle = model._connections["http"]._idle
        holding.over.set()
        held.join()
        assert (len(idle), server.connections) == (2, 2)
        assert model.predict(0 * ONE).item() == 0


def test_a_deadline_is_for_all_addresses_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    times = list[float]()

    def connect(place: Any, seconds: float) -> Any:
        times.append(seconds)
        time.sleep(0.05)
        raise TimeoutError

    with raw_server() as server, Model("m", url=server.url, transport=HTTP) as model:
        model._connections["http"].close()
        model._connections.clear()
        found = [(0, 0, 0, "", (f"127.0.0.{number}", 1)) for number in range(3)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(socket, "create_connection", connect)
        with pytest.raises(TimedOutError):
            model.predict(ONE, timeout_s=0.08)
    assert len(times) == 2
    assert times[1] < 0.04


@KINDS
def test_a_deadline_closes_the_connection(kind: str) -> None:
    holding = Holding()

    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            assert (await predict(0 * ONE)).item() == 0
            for number in range(2):
                with pytest.raises(TimedOutError, match=r"no answer within 0\.1 s"):
                    await predict(ONE, timeout_s=0.1)
                assert (await predict(0 * ONE)).item() == 0
                assert server.connections == number + 2
        holding.over.set()

    run(scenario, holding)


@KINDS
def test_a_large_request_arrives_in_its_order(kind: str) -> None:
    """The system often takes only a part of a piece."""

    async def scenario(server: RawServer) -> None:
        async with opened(kind, server.url) as predict:
            sent = LARGE[:, :1_000_000]
            for received in await asyncio.gather(*(predict(sent + number) for number in range(3))):
                assert (received - sent == received[0, 0]).all()

    run(scenario)
