"""The client processes: each sends requests over one transport for some time and reports their latencies."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from clients import Model
from clients.transport import Transport
from perf.studies.transports.models import SHAPES
from serve.launcher import Server
from triton_batching.terminal import Failure

TRANSPORTS: tuple[Transport, ...] = ("shared_memory", "grpc", "http")


def work(pipe: Connection, urls: dict[Transport, str], number: int) -> None:
    """Run one worker: for each order (model, transport, seconds) it sends back the latencies of its requests in us."""
    # Ctrl-C reaches the workers too; the first process decides what to do.
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        models = {
            (name, transport): stack.enter_context(Model(name, url=url, transport=transport))
            for name in SHAPES
            for transport, url in urls.items()
        }
        inputs = {name: np.full((1, *shape), number, np.float32) for name, (shape, _) in SHAPES.items()}
        while (order := pipe.recv()) is not None:
            name, transport, seconds = order
            pipe.send(_latencies_us(models[name, transport], inputs[name], seconds))


def _latencies_us(model: Model, row: NDArray[np.float32], seconds: float) -> list[float]:
    latencies = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        answer = model.predict(row)
        latencies.append((time.perf_counter() - started) * 1e6)
        if answer.flat[0] != row.flat[0]:
            raise Failure(f"'{model.metadata.name}' gave the answer to another request.")
    return latencies


@contextmanager
def crew(server: Server, count: int) -> Iterator[list[Connection]]:
    """Start `count` workers; yields a pipe to each."""
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
            with suppress(OSError):  # a worker that failed has ended already
                pipe.send(None)
            worker.join(10)
