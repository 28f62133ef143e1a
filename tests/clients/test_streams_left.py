"""Streams that end early on a real server: left by their caller, by a closed model, or by the server's death."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stream_models
from processes import wait_until
from server_processes import tritonserver
from stream_models import X, values

from clients import AsyncModel, ClosedError, Model, ServerUnreachableError
from serve.launcher import Server, launch

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stream_models.build(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with launch(stream_models.settings(repository)) as running:
        yield running


def test_leaving_a_loop_leaves_the_model_usable(server: Server) -> None:
    """Before 2.59 the other answers are read and dropped, and count as a request in flight meanwhile."""

    async def scenario() -> None:
        async with AsyncModel("parts", url=server.grpc_url, max_in_flight=1) as model:
            async with contextlib.aclosing(model.stream(X, parameters={"count": 200, "width": 4096})) as stream:
                assert (await anext(stream))[0, 0] == 5.0
                assert model._in_flight.count == 1
            assert model._in_flight.count == 1
            # The next one has to wait for the place of this one.
            assert values([part async for part in model.stream(X, parameters={"count": 3})]) == [5.0, 6.0, 7.0]
            assert model._in_flight.count == 0

    asyncio.run(scenario())


def test_a_break_without_aclosing_ends_the_stream_too(server: Server) -> None:
    async def scenario() -> None:
        async with AsyncModel("parts", url=server.grpc_url) as model:
            async for part in model.stream(X, parameters={"count": 20}):
                assert part[0, 0] == 5.0
                break
            for _ in range(500):
                if not model._in_flight.count:
                    break
                await asyncio.sleep(0.01)
            assert model._in_flight.count == 0

    asyncio.run(scenario())


def test_leaving_a_blocking_loop_gives_its_connection_back(server: Server) -> None:
    with Model("parts", url=server.grpc_url) as model:
        for _ in range(3):
            for part in model.stream(X, parameters={"count": 100}):
                assert part[0, 0] == 5.0
                break
            streams = model._connection._streams  # type: ignore[attr-defined]
            assert wait_until(lambda streams=streams: not streams.dropped, seconds=10)  # type: ignore[misc]
            assert len(streams._idle._lines) == 1
        assert values(list(model.stream(X, parameters={"count": 2}))) == [5.0, 6.0]


def test_a_cancelled_task_leaves_its_stream(server: Server) -> None:
    async def scenario() -> None:
        seen = list[float]()

        async def read(model: AsyncModel) -> None:
            async for part in model.stream(X, parameters={"count": 3, "waits_at": 1, "seconds": 1.0}):
                seen.append(float(part[0, 0]))

        async with AsyncModel("parts", url=server.grpc_url) as model:
            task = asyncio.create_task(read(model))
            while not seen:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen == [5.0]
            assert values([part async for part in model.stream(X, parameters={"count": 1})]) == [5.0]

    asyncio.run(scenario())


def test_closing_the_model_ends_its_streams(server: Server) -> None:
    async def scenario() -> None:
        model = AsyncModel("parts", url=server.grpc_url)
        async with model:
            stream = model.stream(X, parameters={"count": 3, "waits_at": 1, "seconds": 0.5})
            assert values([await anext(stream)]) == [5.0]
            waiting = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.05)
        with pytest.raises(ClosedError):
            await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_server_that_ends_in_the_middle(repository: Path, kind: str) -> None:
    """The answers before it have come, and the error says that the model may have run."""
    with launch(stream_models.settings(repository, "parts")) as running:
        wishes, parts = {"count": 5, "waits_at": 3, "seconds": 60}, list[Any]()

        def took(part: Any) -> None:
            parts.append(part)
            if len(parts) == 3:
                os.kill(tritonserver(running.pid), signal.SIGKILL)

        def block() -> None:
            with Model("parts", url=running.grpc_url) as model:
                for part in model.stream(X, parameters=wishes):
                    took(part)

        async def wait() -> None:
            async with AsyncModel("parts", url=running.grpc_url) as model:
                async for part in model.stream(X, parameters=wishes):
                    took(part)

        with pytest.raises(ServerUnreachableError) as raised:
            block() if kind == "blocking" else asyncio.run(wait())
        assert (values(parts), raised.value.retryable) == ([5.0, 6.0, 7.0], False)
