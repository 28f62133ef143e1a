"""One client in a process of its own: it calls for a time, checks every answer, and says what that cost in CPU time."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from clients import AsyncModel, Model
from clients.transport import Transport
from perf.studies.peers.raw_http import Connection, post
from triton_batching.terminal import Failure

MODEL = "row"
ELEMENTS = 3200
"""FP32 in one row: 12.8 KB."""

WARM_UP = 4
"""The calls of each caller before time is taken."""

Call = Callable[[], Awaitable[Any]]
Urls = dict[str, str]
"""The addresses of the server by transport, "http" and "grpc"."""

OURS: dict[str, Transport] = {"http": "http", "grpc": "grpc"}
ROW = np.full((1, ELEMENTS), 7, np.float32)


async def raw(urls: Urls, stack: AsyncExitStack) -> Call:
    """The floor: a request that was made before, on a connection of its own; the answer is the end of the body."""
    size = {"binary_data_size": ROW.nbytes}
    described = {"name": "x", "shape": ROW.shape, "datatype": "FP32", "parameters": size}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    content = head + ROW.tobytes()
    request = post(f"/v2/models/{MODEL}/infer", urls["http"], "application/octet-stream", content, length)
    host, _, port = urls["http"].rpartition(":")
    connection = await Connection.open(host, int(port))
    stack.callback(connection.close)

    async def call() -> Any:
        return np.frombuffer((await connection.ask(request))[-4:], np.float32)

    return call


async def ours(transport: Transport, urls: Urls, stack: AsyncExitStack) -> Call:
    """`AsyncModel`."""
    model = await stack.enter_async_context(AsyncModel(MODEL, url=urls[transport], transport=transport))
    return lambda: model.predict(ROW)


async def tritonclient(module: Any, url: str, stack: AsyncExitStack) -> Call:
    """tritonclient's client for asyncio, with an input that was made before."""
    client = await stack.enter_async_context(module.InferenceServerClient(url))
    tensor = module.InferInput("x", list(ROW.shape), "FP32")
    tensor.set_data_from_numpy(ROW)

    async def call() -> Any:
        return (await client.infer(MODEL, [tensor])).as_numpy("y")

    return call


async def calls_of(kind: str, urls: Urls, callers: int, stack: AsyncExitStack) -> list[Call]:
    """One call for each caller; all but `raw` share a client."""
    if kind == "raw":
        return [await raw(urls, stack) for _ in range(callers)]
    if kind in OURS:
        return [await ours(OURS[kind], urls, stack)] * callers
    if kind == "tritonclient http":
        import tritonclient.http.aio as module

        return [await tritonclient(module, urls["http"], stack)] * callers
    import tritonclient.grpc.aio as module

    return [await tritonclient(module, urls["grpc"], stack)] * callers


async def concurrently(kind: str, urls: Urls, callers: int, seconds: float) -> float:
    """Microseconds of CPU time of a call, with `callers` calls in flight for `seconds`."""
    done, until = 0, 0.0

    async def caller(call: Call) -> None:
        nonlocal done
        while time.perf_counter() < until:
            check(await call())
            done += 1

    async with AsyncExitStack() as stack:
        calls = await calls_of(kind, urls, callers, stack)
        for _ in range(WARM_UP):
            await asyncio.gather(*(call() for call in calls))
        until, began = time.perf_counter() + seconds, time.process_time()
        await asyncio.gather(*map(caller, calls))
        return (time.process_time() - began) / done * 1e6


def one_after_another(kind: str, urls: Urls, seconds: float) -> float:
    """Microseconds of CPU time of a call of `Model`."""
    transport, done = OURS[kind.removeprefix("Model ")], 0
    with Model(MODEL, url=urls[transport], transport=transport) as model:
        for _ in range(WARM_UP):
            model.predict(ROW)
        until, began = time.perf_counter() + seconds, time.process_time()
        while time.perf_counter() < until:
            check(model.predict(ROW))
            done += 1
        return (time.process_time() - began) / done * 1e6


def check(answer: Any) -> None:
    """Raise `Failure` for the answer to another request."""
    if answer.item(0) != ROW.item(0):
        raise Failure(f"'{MODEL}' gave the answer to another request.")


def work(pipe: Pipe, kind: str, urls: Urls, callers: int) -> None:
    """Run one client: for each number of seconds that comes it sends back what a call cost in microseconds."""
    # Ctrl-C reaches this process too; the first one decides what to do.
    with suppress(KeyboardInterrupt):
        while (seconds := pipe.recv()) is not None:
            if kind.startswith("Model"):
                pipe.send(one_after_another(kind, urls, seconds))
            else:
                pipe.send(asyncio.run(concurrently(kind, urls, callers, seconds)))
