"""Event hooks on a real server, and transports that a user injects: one that records, and one in place of a server."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
from client_calls import TRANSPORTS, Gate, address, ready

from clients import (
    AsyncModel,
    ClosedError,
    Hooks,
    InvalidInputError,
    Model,
    Request,
    Response,
    ServerFailureError,
    Step,
    TimedOutError,
    TransportError,
)
from clients import protocol as pb
from clients.async_connection import Connection
from clients.connection import BlockingConnection
from clients.transport import Transport
from serve.launcher import Server

ONE = np.ones((1, 1), np.float32)
CALLER: ContextVar[str] = ContextVar("caller", default="")


class Events:
    """Hooks that keep what they were given, with the caller's context."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Request]] = []
        self.responses: list[tuple[str, Response]] = []
        self.hooks: Hooks = {"request": [self.request], "response": [self.response]}

    def request(self, request: Request) -> None:
        self.requests.append((CALLER.get(), request))

    def response(self, response: Response) -> None:
        self.responses.append((CALLER.get(), response))


@pytest.mark.server
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_hooks_see_every_request_and_how_it_ended(client_server: Server, transport: Transport) -> None:
    url = address(client_server, transport)
    events = Events()
    with Model("picky", url=url, transport=transport, timeout_s=9, hooks=events.hooks) as model:
        assert (events.requests, events.responses) == ([], [])  # the calls that open a model are no requests
        CALLER.set("main")
        model.predict(4 * ONE, request_id="a-1")
        with pytest.raises(ServerFailureError) as failure:
            model.predict(-ONE, timeout_s=5)
        with pytest.raises(InvalidInputError):
            model.predict(np.ones((9, 1), np.float32))  # never sent
    first = Request(model="picky", url=url, request_id="a-1", timeout_s=9)
    second = Request(model="picky", url=url, request_id="", timeout_s=5)
    assert events.requests == [("main", first), ("main", second)]
    assert [(caller, response.request) for caller, response in events.responses] == events.requests
    assert [response.error for _, response in events.responses] == [None, failure.value]


@pytest.mark.server
def test_hooks_of_asyncio_run_in_the_task_of_the_caller(client_server: Server, gate: Gate) -> None:
    events = Events()

    async def call(model: AsyncModel, name: str, row: Any, timeout_s: float | None = None) -> None:
        CALLER.set(name)
        await model.predict(row, request_id=name, timeout_s=timeout_s)

    async def crowd() -> None:
        async with AsyncModel("slow", url=client_server.grpc_url, hooks=events.hooks) as model:
            await asyncio.gather(call(model, "a", 0 * ONE), call(model, "b", 0 * ONE))
            with pytest.raises(TimedOutError):
                await call(model, "late", gate.rows(), 0.1)
            task = asyncio.create_task(call(model, "cancelled", gate.rows()))
            await ready()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            gate.open()

    asyncio.run(crowd())
    assert all(caller == request.request_id for caller, request in events.requests)
    ends = {caller: type(response.error) for caller, response in events.responses}
    assert ends == {"a": type(None), "b": type(None), "late": TimedOutError, "cancelled": asyncio.CancelledError}


@pytest.mark.server
def test_merged_calls_are_one_request(client_server: Server) -> None:
    events = Events()

    async def crowd() -> None:
        url, hooks = client_server.grpc_url, events.hooks
        async with AsyncModel("picky", url=url, coalesce=True, hooks=hooks) as model:
            await asyncio.gather(*(model.predict(ONE) for _ in range(8)))

    asyncio.run(crowd())
    assert len(events.requests) == len(events.responses) == 1


class Recording:
    """A transport around another one."""

    def __init__(self, url: str) -> None:
        self.inner, self.methods, self.closed = BlockingConnection(url), list[str](), False

    def call(self, step: Step, model: str) -> Any:
        self.methods.append(step.method)
        return self.inner.call(step, model)

    def close(self) -> None:
        self.inner.close()
        self.closed = True


class RecordingAsync:
    def __init__(self, url: str, methods: list[str]) -> None:
        self.inner, self.methods = Connection(url), methods

    async def call(self, step: Step, model: str) -> Any:
        self.methods.append(step.method)
        return await self.inner.call(step, model)

    async def close(self) -> None:
        await self.inner.close()


@pytest.mark.server
def test_a_transport_can_wrap_another_one(client_server: Server) -> None:
    recording = Recording(client_server.grpc_url)
    with Model("wide", transport=recording) as model:
        assert (model.predict(3 * ONE) == 3).all()
    # Never in shared memory, whose calls a transport of a user need not know.
    assert (recording.methods, recording.closed) == (["ModelConfig", "ModelInfer"], True)
    with pytest.raises(ClosedError):
        model.predict(ONE)

    async def call(methods: list[str]) -> None:
        recording = RecordingAsync(client_server.grpc_url, methods)
        async with AsyncModel("wide", transport=recording) as model:
            assert (await model.predict(3 * ONE) == 3).all()

    methods: list[str] = []
    asyncio.run(call(methods))
    assert methods == ["ModelConfig", "ModelInfer"]


class Doubler:
    """What a user injects in tests of a program that calls a model: y = 2 x, without a server."""

    config = pb.ModelConfig(
        name="doubler",
        max_batch_size=8,
        input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    )

    def call(self, step: Step, model: str) -> Any:
        if step.method == "ModelConfig":
            return pb.ModelConfigResponse(config=self.config)
        request = pb.ModelInferRequest.FromString(step.body())
        doubled = 2 * np.frombuffer(request.raw_input_contents[0], np.float32)
        output = {"name": "y", "datatype": "FP32", "shape": request.inputs[0].shape}
        return pb.ModelInferResponse(outputs=[output], raw_output_contents=[doubled.tobytes()])

    def close(self) -> None:
        return


def doubled(rows: Sequence[Sequence[float]], model: Model) -> Any:
    """A user's function under test."""
    return model.predict(np.array(rows, np.float32))


def test_a_transport_can_stand_in_for_a_server() -> None:
    events = Events()
    with Model("doubler", transport=Doubler(), hooks=events.hooks) as model:
        assert doubled([[1, 2, 3], [4, 5, 6]], model).tolist() == [[2, 4, 6], [8, 10, 12]]
        with pytest.raises(InvalidInputError, match="1 to 8 rows"):
            doubled([[1.0]] * 9, model)
    assert len(events.responses) == 1


class AsyncDoubler(Doubler):
    async def call(self, step: Step, model: str) -> Any:
        return super().call(step, model)

    async def close(self) -> None:  # type: ignore[override]
        return


def call(transport: Any) -> Any:
    with Model("doubler", transport=transport) as model:
        return model.predict(ONE)


async def call_async(transport: Any) -> Any:
    async with AsyncModel("doubler", transport=transport) as model:
        return await model.predict(ONE)


def test_a_transport_of_the_other_kind_is_refused() -> None:
    assert asyncio.run(call_async(AsyncDoubler())).tolist() == [[2]]
    with pytest.raises(TransportError, match="Model is blocking") as failure:
        call(AsyncDoubler())
    assert (failure.value.model, failure.value.url) == ("doubler", "localhost:8001")
    with pytest.raises(TransportError, match="AsyncModel awaits it"):
        asyncio.run(call_async(Doubler()))
