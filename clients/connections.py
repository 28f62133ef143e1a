"""The connections of one client to several servers; each is made with the first call to that server."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any, cast

from .errors import ClientError, ClosedError
from .in_flight import InFlight
from .replica import CLOSE
from .replicas import Replicas
from .steps import Step, Steps, run, run_async
from .transport import AsyncStreaming, AsyncTransport, BlockingStreaming, BlockingTransport, connect, connect_async


class BlockingConnections:
    """The connections of `Model`; looks at replicas that do not answer run in threads."""

    def __init__(self, replicas: Replicas, model: str) -> None:
        self._replicas, self._model = replicas, model
        self._made: dict[str, BlockingTransport] = {}
        self._making, self._closed = threading.Lock(), False
        replicas.start = self._start

    def call(self, step: Step, model: str) -> Any:
        """Make one call at the server that the step names; returns the answer, raises a `ClientError`."""
        if step.method == CLOSE:
            return self._end(step.url)
        return (self._made.get(step.url) or self._make(step.url)).call(step, model)

    def stream(self, step: Step, model: str) -> Generator[Any, None, None]:
        """The answers to one request, from the server that the step names."""
        with self._replicas.streaming(step.url):
            connection = self._made.get(step.url) or self._make(step.url)
            yield from cast("BlockingStreaming", connection).stream(step, model)

    def _make(self, url: str) -> BlockingTransport:
        with self._making:
            if self._closed:
                raise ClosedError(f"'{self._model}' was closed.")
            if url not in self._made:
                # Another replica may answer, so a call does not wait for one that is gone.
                self._made[url] = connect(self._replicas.endpoints[url], self._replicas.transport, waits=False)
            return self._made[url]

    def _end(self, url: str) -> None:
        with self._making:
            connection = self._made.pop(url, None)
        if connection:
            connection.close()

    def _start(self, steps: Steps[None]) -> None:
        threading.Thread(target=self._run, args=(steps,), name="triton-replica", daemon=True).start()

    def _run(self, steps: Steps[None]) -> None:
        # gRPC raises ValueError for a call on a channel that has just been closed.
        with contextlib.suppress(ClientError, ValueError):
            run(steps, lambda step: self.call(step, self._model))

    def close(self) -> None:
        """End all connections."""
        with self._making:
            self._closed = True
            made = list(self._made)
        for url in made:
            self._end(url)


class Connections:
    """The connections of `AsyncModel`; looks at replicas that do not answer run in tasks."""

    def __init__(self, replicas: Replicas, model: str, in_flight: InFlight) -> None:
        self._replicas, self._model, self._in_flight = replicas, model, in_flight
        self._made: dict[str, AsyncTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        replicas.start = self._start

    async def call(self, step: Step, model: str) -> Any:
        """Make one call at the server that the step names; returns the answer, raises a `ClientError`."""
        if step.method == CLOSE:
            return await self._end(step.url)
        return await (self._made.get(step.url) or self._make(step.url)).call(step, model)

    async def stream(self, step: Step, model: str) -> AsyncGenerator[Any, None]:
        """The answers to one request, from the server that the step names."""
        connection = cast("AsyncStreaming", self._made.get(step.url) or self._make(step.url))
        with self._replicas.streaming(step.url):
            async with contextlib.aclosing(connection.stream(step, model)) as answers:
                async for answer in answers:
                    yield answer

    def _make(self, url: str) -> AsyncTransport:
        endpoint, transport = self._replicas.endpoints[url], self._replicas.transport
        self._made[url] = connect_async(endpoint, transport, self._in_flight, waits=False)
        return self._made[url]

    async def _end(self, url: str) -> None:
        if connection := self._made.pop(url, None):
            await connection.close()

    def _start(self, steps: Steps[None]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(steps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, steps: Steps[None]) -> None:
        with contextlib.suppress(ClientError):
            await run_async(steps, lambda step: self.call(step, self._model))

    async def close(self) -> None:
        """End the looks and all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*map(self._end, list(self._made)))
