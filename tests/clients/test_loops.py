"""An `AsyncModel` in one event loop after another, and the loop's own deadline for the name of a host."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from grpc_server import grpc_server
from raw_server import raw_server

from clients import AsyncModel, ClosedError

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
LIMIT_S = 10


@pytest.fixture(params=["http", "grpc"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, int]]:
    """A transport, the address of a server, and what the server multiplies rows by."""
    if request.param == "http":
        with raw_server() as raw:
            yield "http", raw.url, 1
    else:
        with grpc_server() as running:
            yield "grpc", running.url, 2


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


def test_two_loops_at_once_are_refused_in_words(served: tuple[str, str, int]) -> None:
    async def call() -> None:
        async with model(served) as opened:
            with pytest.raises(ClosedError, match="another event loop, which has not ended") as raised:
                await asyncio.to_thread(asyncio.run, check(opened, served[2]))
            assert raised.value.model == "m"
            await check(opened, served[2])

    asyncio.run(call())
