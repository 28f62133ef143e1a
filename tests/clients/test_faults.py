"""Calls to servers that cut, reset and close connections at random: none ends wrong, late, or with a raw exception.

`PYTHONPATH=.:tests/helpers python tests/clients/test_faults.py 20000` makes so many calls over each protocol and prints
how they ended.
"""

import asyncio
import contextlib
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from grpc_server import grpc_server
from raw_server import Request, answer, raw_server

from clients import AsyncModel, ClientError, Model

TIMEOUT_S, GRACE_S = 2.0, 2.0
"""The deadline of a call, and how much later it may end on a machine that does other things."""

RESET = b"\1\0\0\0\0\0\0\0"
FAULTS = 0.1
THREADS, TASKS = 4, 16


def fault(rng: random.Random, request: Request) -> bool:
    """Answer a request over HTTP, or do something worse."""
    whole = answer(request.tensor())
    if rng.random() >= FAULTS:
        request.client.sendall(whole)
        return True
    kind = rng.choice(("nothing", "part", "reset", "closes", "surplus", "garbage"))
    if kind in ("part", "reset"):
        request.client.sendall(whole[: rng.randrange(len(whole))])
    elif kind == "garbage":
        request.client.sendall(rng.randbytes(rng.randrange(1, 200)))
    elif kind in ("closes", "surplus"):
        request.client.sendall(whole + b"x" * (kind == "surplus"))
    if kind == "reset":
        request.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return False


@contextlib.contextmanager
def http() -> Iterator[str]:
    rng = random.Random(1)
    with raw_server(lambda request: fault(rng, request)) as server:
        yield f"http://{server.url}"


class Cutter:
    """Forwards connections to a server, and ends each at a random time, half of them by a reset."""

    def __init__(self, target: str) -> None:
        self.target, self.rng = target, random.Random(2)
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        host, port = self.target.split(":")
        with contextlib.suppress(OSError):
            while True:
                pair = [self.listener.accept()[0], socket.create_connection((host, int(port)))]
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=self.forward, args=(source, sink), daemon=True).start()
                threading.Timer(self.rng.uniform(0.2, 1.0), self.cut, pair).start()

    def forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(1 << 16):
                sink.sendall(received)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def cut(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.rng.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.shutdown(socket.SHUT_RDWR)
        client.close()
        server.close()


@contextlib.contextmanager
def grpc() -> Iterator[str]:
    with grpc_server() as server:
        server.infer = lambda request: answered(request)
        cutter = Cutter(server.url)
        yield f"grpc://127.0.0.1:{cutter.listener.getsockname()[1]}"
        cutter.listener.close()


def answered(request: Any) -> Any:
    """The request's own row."""
    from grpc_server import outputs

    return outputs(("y", np.frombuffer(request.raw_input_contents[0], np.float32).reshape(-1, 1)))


PROTOCOLS: dict[str, Callable[[], Any]] = {"http": http, "grpc": grpc}


class Calls:
    """Numbers of calls that are left, and how the others ended."""

    def __init__(self, count: int) -> None:
        self.numbers, self.ends, self.lock = iter(range(count)), Counter[str](), threading.Lock()

    def next(self) -> int | None:
        with self.lock:
            return next(self.numbers, None)

    def ended(self, number: int, outcome: Any, seconds: float) -> None:
        if isinstance(outcome, np.ndarray):
            end = "right" if outcome.tolist() == [[number]] else "wrong"
        else:
            end = "error" if isinstance(outcome, ClientError) else f"raw {type(outcome).__name__}: {outcome}"
        with self.lock:
            self.ends[end] += 1
            self.ends["late"] += seconds > TIMEOUT_S + GRACE_S


def row(number: int) -> Any:
    return np.full((1, 1), number, np.float32)


def opened(model: Callable[[], Any]) -> Any:
    """A model, once the server lets one open."""
    while True:
        with contextlib.suppress(ClientError):
            return model()


def threads(url: str, calls: Calls) -> None:
    def work() -> None:
        while (number := calls.next()) is not None:
            began = time.monotonic()
            try:
                outcome: Any = model.predict(row(number), timeout_s=TIMEOUT_S)
            except BaseException as error:
                outcome = error
            calls.ended(number, outcome, time.monotonic() - began)

    with opened(lambda: Model("m", url=url)) as model:
        running = [threading.Thread(target=work) for _ in range(THREADS)]
        for each in running:
            each.start()
        for each in running:
            each.join()


async def tasks(url: str, calls: Calls) -> None:
    async def work() -> None:
        while (number := calls.next()) is not None:
            began = time.monotonic()
            try:
                outcome: Any = await model.predict(row(number), timeout_s=TIMEOUT_S)
            except BaseException as error:
                outcome = error
            calls.ended(number, outcome, time.monotonic() - began)

    model = AsyncModel("m", url=url)
    while True:
        with contextlib.suppress(ClientError):
            await model.__aenter__()
            break
    await asyncio.gather(*(work() for _ in range(TASKS)))
    await model.close()


def storm(protocol: str, count: int) -> Counter[str]:
    """How so many calls ended, half of them of threads and half of tasks."""
    with PROTOCOLS[protocol]() as url:
        blocking, awaiting = Calls(count // 2), Calls(count - count // 2)
        threads(url, blocking)
        asyncio.run(tasks(url, awaiting))
        return blocking.ends + awaiting.ends


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_call_ends_right_or_with_an_error_of_the_client(protocol: str) -> None:
    ends = storm(protocol, 600)
    assert set(ends) <= {"right", "error"}, ends
    assert ends["right"] > 400


if __name__ == "__main__":
    for name in PROTOCOLS:
        print(name, dict(storm(name, int(sys.argv[1]))), flush=True)
