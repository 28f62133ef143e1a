"""Three servers with the same models, on the same ports of three addresses, that tests kill and start again; a load."""

import asyncio
import contextlib
import itertools
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import client_models
import numpy as np
from processes import wait_until
from server_processes import tritonserver

from clients import AsyncModel, ClientError, Model
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
MODELS = ("picky", "queued", "slow", "wide")
CALLERS = 8
CALLS = 640


class ReplicaServers:
    """The servers, in the order of `HOSTS`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        # Their secrets would overwrite each other: they have the same port.
        self._settings = Settings(
            models=MODELS,
            repository=client_models.build(Path(self._folder.name)),
            arguments=("--disable-auto-complete-config",),
            open_admin=True,
        )
        self._stack = contextlib.ExitStack()
        self.servers: list[Server] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            started.push(self._stack)
            started.enter_context(self._folder)
            for host in HOSTS:
                self.servers.append(self._start(host))
            self._stack = started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _start(self, host: str, repository: Path | None = None) -> Server:
        settings = replace(self._settings, host=host, repository=repository or self._settings.repository)
        if repository:
            settings = replace(settings, models=("picky",))
        if self.servers:
            ports = {name: getattr(self.servers[0], name) for name in ("http_port", "grpc_port", "metrics_port")}
            settings = replace(settings, **ports)
        return self._stack.enter_context(launch(settings))

    def urls(self, transport: str, count: int = len(HOSTS)) -> list[str]:
        """The addresses that a transport needs."""
        return [server.http_url if transport == "http" else server.grpc_url for server in self.servers[:count]]

    def url(self, transport: str, count: int = len(HOSTS)) -> str:
        """The same as one `url`."""
        return ",".join(self.urls(transport, count))

    def requests(self, model: str, *, but: int | None = None) -> list[int]:
        """How many requests each has answered since it was started, without the server at the index `but`."""
        return [
            Counters.read(server.grpc_url, model).requests for index, server in enumerate(self.servers) if index != but
        ]

    def kill(self, index: int) -> None:
        """End a server as a crash does."""
        os.kill(tritonserver(self.servers[index].pid), signal.SIGKILL)

    def start_again(self, index: int, repository: Path | None = None) -> None:
        """Start a server that was killed; with another repository it serves only `picky`."""
        assert wait_until(lambda: not self.servers[index].running(), seconds=20)
        self.servers[index] = self._start(HOSTS[index], repository)

    def complete(self) -> None:
        """Start those again that a test has left dead."""
        for index, server in enumerate(self.servers):
            if not server.running():
                self.start_again(index)

    def stop(self, index: int) -> None:
        """End a server as an update does; requests in flight are answered."""
        os.kill(tritonserver(self.servers[index].pid), signal.SIGTERM)

    @contextlib.contextmanager
    def hung(self, index: int) -> Iterator[None]:
        """A server that keeps its connections and does nothing."""
        pid = tritonserver(self.servers[index].pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def row(value: float) -> Any:
    """A request of one row."""
    return np.full((1, 1), value, np.float32)


class Load:
    """Calls that go on until `CALLS` were made; `half` is set when half of them were answered."""

    def __init__(self) -> None:
        self._numbers, self.half = itertools.count(), threading.Event()
        self.wrong: list[Any] = []
        self.right = 0

    def values(self) -> Iterator[float]:
        for number in self._numbers:
            if number >= CALLS:
                return
            if number >= CALLS // 2:
                self.half.set()
            yield float(number)

    def check(self, value: float, answer: Any) -> None:
        if isinstance(answer, Exception) or abs(answer.item() - value**0.5) > 1e-3:
            self.wrong.append((value, answer))
        else:
            self.right += 1

    def block(self, model: Model) -> None:
        def caller() -> None:
            for value in self.values():
                try:
                    self.check(value, model.predict(row(value)))
                except ClientError as error:
                    self.check(value, error)

        with ThreadPoolExecutor(CALLERS) as threads:
            for done in [threads.submit(caller) for _ in range(CALLERS)]:
                done.result()

    async def call(self, model: AsyncModel) -> None:
        async def caller() -> None:
            for value in self.values():
                try:
                    self.check(value, await model.predict(row(value)))
                except ClientError as error:
                    self.check(value, error)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
