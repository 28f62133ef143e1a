"""An `AsyncModel` in one event loop after another, and the loop's own deadline for the name of a host."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from h2_server import h2_server
from raw_server import raw_server

from clients import AsyncModel, ClosedError, TimedOutError

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
LIMIT_S = 10


@pytest.fixture(params=["http", "grpc"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, int]]:
    """A transport, the address of a server, and what the server multiplies rows by."""
    if request.param == "http":
        with raw_server() as raw:
            yield "http", raw.url, 1
    else:
        with h2_server() as h2:
            yield "grpc", h2.url, 2


def model(served: tuple[str, str, int], **arguments: Any) -> AsyncModel:
    transport, url, _ = served
    given: Any = transport
    return AsyncModel("m", url=url, transport=given, timeout_s=LIMIT_S, **arguments)


async def check(opened: AsyncModel, factor: int) -> None:
    for answer in await asyncio.gather(*(opened.predict(ROWS[:, :1]) for _ in range(3))):
        np.testing.assert_array_equal(answer, factor * ROWS[:, :1])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the sockets of a loop that has ended
@pytest.mark.parametrize("coalesce", [False, True])
def test_a_model_goes_on_in_the_next_loop(served: tuple[str, str, int], coalesce: bool) -> None:
    opened = model(served, coalesce=coalesce)

    async def begin() -> None:
        await opened.__aenter__()
        await check(opened, served[2])

    async def end() -> None:
        await check(opened, served[2])
        await opened.close()
        with pytest.raises(ClosedError):
            await opened.predict(ROWS[:, :1])

    asyncio.run(begin())
    asyncio.run(check(opened, served[2]))
    asyncio.run(end())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_model_is_closed_in_the_next_loop(served: tuple[str, str, int]) -> None:
    opened = model(served)
    asyncio.run(opened.__aenter__())
    asyncio.run(opened.close())
    with pytest.raises(ClosedError):
        asyncio.run(check(opened, served[2]))


def test_two_loops_at_once_are_refused_in_words(served: tuple[str, str, int]) -> None:
    async def call() -> None:
        async with model(served) as opened:
            with pytest.raises(ClosedError, match="another event loop, which has not ended") as raised:
                await asyncio.to_thread(asyncio.run, check(opened, served[2]))
            assert raised.value.model == "m"
            await check(opened, served[2])

    asyncio.run(call())


def test_a_name_that_is_not_resolved_does_not_move_the_deadline(
    served: tuple[str, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, url, _ = served
    found, over = socket.getaddrinfo, threading.Event()
    asked: list[Any] = []

    def wait(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "localhost":
            asked.append(over.wait(LIMIT_S))
        return found(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", wait)

    async def call() -> None:
        try:
            with pytest.raises(TimedOutError):
                async with AsyncModel(
                    "m",
                    url=f"localhost:{url.rpartition(':')[2]}",
                    transport="http" if transport == "http" else "grpc",
                    timeout_s=0.1,
                ):
                    pass
        finally:
            over.set()

    asyncio.run(call())
    assert asked == [True]  # the name was still awaited when the call had ended
