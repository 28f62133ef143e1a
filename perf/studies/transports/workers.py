"""The client processes: each sends requests over one transport for some time and reports their latencies."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection

import numpy as np

from clients import Model
from clients.transport import Transport
from perf.studies.transports.models import SHAPES
from serve.launcher import Server
from triton_batching.terminal import Failure

TRANSPORTS: tuple[Transport, ...] = ("shared_memory", "grpc", "http")


def work(pipe: Connection, urls: dict[Transport, str], number: int) -> None:
    """One worker: for each (model, transport, seconds) that comes, the latencies in us of its requests."""
    # Ctrl-C reaches it as well; the first process says what comes of it.
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        models = {
            (name, transport): stack.enter_context(Model(name, url=url, transport=transport))
            for name in SHAPES
            for transport, url in urls.items()
        }
        pictures = {name: np.full((1, *taken), number, np.float32) for name, (taken, _) in SHAPES.items()}
        while (order := pipe.recv()) is not None:
            name, transport, seconds = order
            pipe.send(_latencies_us(models[name, transport], pictures[name], seconds))


def _latencies_us(
    model: Model, picture: np.ndarray[tuple[int, ...], np.dtype[np.float32]], seconds: float
) -> list[float]:
    found = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        answer = model.predict(picture)
        found.append((time.perf_counter() - started) * 1e6)
        if answer.flat[0] != picture.flat[0]:
            raise Failure(f"'{model.metadata.name}' gave another request's answer.")
    return found


@contextmanager
def crowd(server: Server, count: int) -> Iterator[list[Connection]]:
    """So many workers, connected and waiting for orders."""
    urls = {transport: server.http_url if transport == "http" else server.grpc_url for transport in TRANSPORTS}
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for number in range(count):
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs, urls, number + 1), daemon=True)
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    try:
        yield pipes
    finally:
        for pipe, worker in zip(pipes, workers, strict=True):
            with suppress(OSError):  # one that failed has ended by itself
                pipe.send(None)
            worker.join(10)
