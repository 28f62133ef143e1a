"""A server's address for a transport, the regions of shared memory that it knows, and gates that hold its models."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from processes import wait_until

from clients import TransportName
from serve.launcher import Server
from serve.management import admin
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

TRANSPORTS: tuple[TransportName, ...] = ("auto", "shared_memory", "grpc", "http")
LIMIT_S = 30.0


class Gate:
    """The number `self.number` as a row of `slow`, `narrow` or `queued`: its execution waits until `open`."""

    _numbers = itertools.count(1)

    def __init__(self, repository: Path) -> None:
        self.number = next(self._numbers)
        self._folder = repository / "gates"

    def rows(self, count: int = 1) -> Any:
        """A request that waits."""
        return np.full((count, 1), self.number, np.float32)

    def open(self) -> None:
        """Let all executions go on, those to come as well."""
        (self._folder / f"{self.number}.open").touch()

    def has(self, count: int = 1) -> bool:
        """Whether so many requests have begun."""
        begun = self._folder / f"{self.number}.begun"
        return wait_until(lambda: begun.exists() and len(begun.read_bytes()) >= count, seconds=LIMIT_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait, while the loop goes on."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def ready() -> None:
    """Let all tasks of the loop go on as far as they can without an answer."""
    for _ in range(10):
        await asyncio.sleep(0)


def waiting(server: Server, model: str, count: int) -> bool:
    """Whether so many requests are in the model's queue."""
    return wait_until(lambda: Metrics.read(server.metrics_url).pending[model] == count, seconds=LIMIT_S)


def counted(server: Server, model: str, before: Counters, *, rows: int) -> Counters:
    """What the server has counted since `before`, with these rows; it answers first and counts then."""
    assert wait_until(lambda: (Counters.read(server.grpc_url, model) - before).rows >= rows, seconds=LIMIT_S)
    counters = Counters.read(server.grpc_url, model) - before
    assert counters.rows == rows
    return counters


def address(server: Server, transport: str) -> str:
    """The address that the transport needs; that of both protocols for those that may use both."""
    if transport in ("grpc", "http"):
        return server.http_url if transport == "http" else server.grpc_url
    return f"http://{server.http_url},grpc://{server.grpc_url}"


def registered(url: str, headers: dict[str, str] | None = None, **secured: Any) -> list[str]:
    """The names of the regions of shared memory that the server at host:port of gRPC knows."""
    with triton.InferenceServerClient(url, ssl=bool(secured), **secured) as client:
        status = client.get_system_shared_memory_status(headers={**admin.headers(url), **(headers or {})})
        return sorted(status.regions)
