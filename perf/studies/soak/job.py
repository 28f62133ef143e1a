"""The work of one client process of a soak: how it calls, its transport, and the models that it calls."""

from dataclasses import dataclass
from typing import Literal

from clients.transport import Transport

# The models that repository.py writes.
PICTURES, POLICED, PACKED, SUMS = MODELS = ("pictures", "policed", "packed", "sums")
Shape = Literal["threads", "tasks", "children", "openings"]


@dataclass(frozen=True, kw_only=True)
class ClientJob:
    """One process, with `callers` at the same time in one of four shapes.

    threads    callers share one blocking client per model
    tasks      callers share one asynchronous client per model; some calls are cancelled
    children   each caller is a forked process that opens a client, calls and ends; some are killed in mid-call
    openings   each caller opens a client, calls a few times and closes it; half of the callers are asynchronous
    """

    worker: int
    name: str
    shape: Shape
    transport: Transport
    models: tuple[str, ...]
    callers: int
    coalesce: bool = False
    seed: int = 0
    grpc_url: str = ""
    http_url: str = ""
    folder: str = ""

    def url(self, transport: Transport) -> str:
        """The server's address for a transport."""
        return self.http_url if transport == "http" else self.grpc_url


def jobs(*, seed: int, grpc_url: str, http_url: str, folder: str) -> list[ClientJob]:
    """The jobs of all processes; `folder` is for their temporary files."""
    kinds: list[tuple[str, Shape, Transport, tuple[str, ...], int, bool]] = [
        ("threads over gRPC", "threads", "grpc", (PICTURES, SUMS), 4, False),
        ("threads over HTTP", "threads", "http", (PACKED, PICTURES), 3, False),
        ("threads, shared memory", "threads", "shared_memory", (PICTURES, SUMS), 3, False),
        ("asyncio over gRPC", "tasks", "grpc", (PICTURES, SUMS, PACKED), 8, False),
        ("asyncio over HTTP", "tasks", "http", (SUMS, PACKED), 6, False),
        ("asyncio, shared memory", "tasks", "shared_memory", (PICTURES, PACKED), 6, False),
        ("asyncio, coalesced", "tasks", "grpc", (PICTURES, PACKED), 8, True),
        ("asyncio, policy", "tasks", "grpc", (POLICED,), 12, False),
        ("forked children", "children", "auto", (PICTURES, PACKED, SUMS), 3, False),
        ("opened and closed", "openings", "auto", (PICTURES, PACKED, SUMS), 2, False),
    ]
    return [
        ClientJob(
            worker=worker,
            name=name,
            shape=shape,
            transport=transport,
            models=models,
            callers=callers,
            coalesce=coalesce,
            seed=seed,
            grpc_url=grpc_url,
            http_url=http_url,
            folder=folder,
        )
        for worker, (name, shape, transport, models, callers, coalesce) in enumerate(kinds)
    ]
