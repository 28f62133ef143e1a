"""One client in a process of its own: it calls for a time, checks every answer, and says what that cost in CPU time."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from resource import RUSAGE_SELF, getrusage, struct_rusage
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import AsyncModel, Model, TransportName
from perf.studies.cost.record import ALONE, ALONE_RAW, GRPCIO, MERGED, RAW, THEIRS
from perf.studies.peers.raw_http import Connection, post
from triton_batching.terminal import Failure

WARM_UP = 4
"""The calls of each caller before time is taken."""

METHOD = "/inference.GRPCInferenceService/ModelInfer"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

Call = Callable[[], Awaitable[Any]]
Urls = dict[str, str]
"""The addresses of the server by protocol, "http" and "grpc"."""

OURS: dict[str, TransportName] = {"http": "http", "grpc": "grpc", "shared_memory": "shared_memory"}


@dataclass(frozen=True)
class Job:
    """What one client calls: `row` is the request for the model of its size."""

    client: str
    size: int
    urls: Urls
    callers: int

    @property
    def model(self) -> str:
        """The model's name."""
        return name(self.size)

    @property
    def row(self) -> NDArray[np.float32]:
        """One row, of which the answer is the first value."""
        return np.full((1, self.size // 4), 7, np.float32)

    def url(self, transport: str) -> str:
        """The address for a transport."""
        return self.urls["http" if transport == "http" else "grpc"]

    def http_request(self) -> bytes:
        """The whole request over HTTP."""
        row = self.row
        size = {"binary_data_size": row.nbytes}
        described = {"name": "x", "shape": row.shape, "datatype": "FP32", "parameters": size}
        head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}"
        path = f"/v2/models/{self.model}/infer"
        return post(path, self.urls["http"], "application/octet-stream", head + row.tobytes(), length)

    def grpc_request(self) -> bytes:
        """The whole message of a request over gRPC."""
        from tritonclient.grpc import service_pb2

        request = service_pb2.ModelInferRequest(model_name=self.model, raw_input_contents=[self.row.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=self.row.shape)
        return bytes(request.SerializeToString())


def name(size: int) -> str:
    """The model for requests of this size."""
    return f"row{size}"


async def raw(job: Job, stack: AsyncExitStack) -> Call:
    """The floor: a request that was made before, on a connection of its own; the answer is the end of the body."""
    request = job.http_request()
    host, _, port = job.urls["http"].rpartition(":")
    connection = await Connection.open(host, int(port))
    stack.callback(connection.close)

    async def call() -> Any:
        return np.frombuffer((await connection.ask(request))[-4:], np.float32)

    return call


async def ours(job: Job, stack: AsyncExitStack) -> Call:
    """`AsyncModel`."""
    kind, _, merged = job.client.partition(", ")
    transport, row = OURS[kind], job.row
    model = AsyncModel(job.model, url=job.url(transport), transport=transport, coalesce=bool(merged))
    await stack.enter_async_context(model)
    return lambda: model.predict(row)


async def grpcio(job: Job, stack: AsyncExitStack) -> Call:
    """The floor of grpcio: bytes that were made before, and an answer of which only the last bytes are read."""
    import grpc.aio

    request = job.grpc_request()
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(job.urls["grpc"], UNLIMITED))
    method = channel.unary_unary(METHOD, None, None)

    async def call() -> Any:
        return np.frombuffer((await method(request))[-4:], np.float32)

    return call


async def tritonclient(module: Any, job: Job, url: str, stack: AsyncExitStack) -> Call:
    """tritonclient's client for asyncio, with an input that was made before."""
    client = await stack.enter_async_context(module.InferenceServerClient(url))
    tensor = module.InferInput("x", list(job.row.shape), "FP32")
    tensor.set_data_from_numpy(job.row)

    async def call() -> Any:
        return (await client.infer(job.model, [tensor])).as_numpy("y")

    return call


async def calls_of(job: Job, stack: AsyncExitStack) -> list[Call]:
    """One call for each caller; all but `raw` share a client."""
    if job.client == RAW:
        return [await raw(job, stack) for _ in range(job.callers)]
    if job.client in (*OURS, *MERGED):
        return [await ours(job, stack)] * job.callers
    if job.client == GRPCIO:
        return [await grpcio(job, stack)] * job.callers
    if job.client == THEIRS[0]:
        import tritonclient.http.aio as module

        return [await tritonclient(module, job, job.urls["http"], stack)] * job.callers
    import tritonclient.grpc.aio as module

    return [await tritonclient(module, job, job.urls["grpc"], stack)] * job.callers


async def concurrently(job: Job, seconds: float) -> tuple[float, float]:
    """Microseconds of a call, with `callers` calls in flight for `seconds`."""
    done, until = 0, 0.0

    async def caller(call: Call) -> None:
        nonlocal done
        while time.perf_counter() < until:
            check(await call())
            done += 1

    async with AsyncExitStack() as stack:
        calls = await calls_of(job, stack)
        for _ in range(WARM_UP):
            await asyncio.gather(*(call() for call in calls))
        until, began = time.perf_counter() + seconds, getrusage(RUSAGE_SELF)
        await asyncio.gather(*map(caller, calls))
        return parts(began, done)


def blocking(job: Job, stack: ExitStack) -> Callable[[], Any]:
    """A call of a client that blocks."""
    row = job.row
    if job.client == ALONE_RAW:
        host, _, port = job.urls["http"].rpartition(":")
        connected = stack.enter_context(socket.create_connection((host, int(port))))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = job.http_request()
        return lambda: ask(connected, request)
    if job.client.startswith("Model"):
        transport = OURS[job.client.removeprefix("Model ")]
        model = stack.enter_context(Model(job.model, url=job.url(transport), transport=transport))
        return lambda: model.predict(row)
    import tritonclient.grpc as module

    client = stack.enter_context(module.InferenceServerClient(job.urls["grpc"]))
    tensor = module.InferInput("x", list(row.shape), "FP32")
    tensor.set_data_from_numpy(row)
    return lambda: client.infer(job.model, [tensor]).as_numpy("y")


def ask(connected: socket.socket, request: bytes) -> Any:
    """The floor of clients that block: the answer comes in one piece, and ends with its 4 bytes."""
    connected.sendall(request)
    return np.frombuffer(connected.recv(1 << 16)[-4:], np.float32)


def one_after_another(job: Job, seconds: float) -> tuple[float, float]:
    """Microseconds of a call, with one in flight."""
    done = 0
    with ExitStack() as stack:
        call = blocking(job, stack)
        for _ in range(WARM_UP):
            check(call())
        until, began = time.perf_counter() + seconds, getrusage(RUSAGE_SELF)
        while time.perf_counter() < until:
            check(call())
            done += 1
        return parts(began, done)


def parts(began: struct_rusage, done: int) -> tuple[float, float]:
    """Microseconds of CPU time of a call since `began`: in the client's own code, and in the system."""
    now = getrusage(RUSAGE_SELF)
    return (now.ru_utime - began.ru_utime) / done * 1e6, (now.ru_stime - began.ru_stime) / done * 1e6


def check(answer: Any) -> None:
    """Raise `Failure` for the answer to another request."""
    if answer.item(0) != 7:
        raise Failure("a model gave the answer to another request.")


def work(pipe: Pipe, client: str, urls: Urls, callers: int) -> None:
    """Run one client: for each (size, seconds) that comes it sends back what a call cost in microseconds."""
    # Ctrl-C reaches this process too; the first one decides what to do.
    with suppress(KeyboardInterrupt):
        while (order := pipe.recv()) is not None:
            size, seconds = order
            job = Job(client, size, urls, callers)
            if client in ALONE:
                pipe.send(one_after_another(job, seconds))
            else:
                pipe.send(asyncio.run(concurrently(job, seconds)))
