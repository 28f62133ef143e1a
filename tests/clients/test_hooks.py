"""Event hooks on a real server, and transports of the user: one that records, and one in place of a server."""

import asyncio
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
from client_calls import TRANSPORTS, Gate, address, ready

from clients import (
    AsyncModel,
    Hooks,
    InvalidInputError,
    MockTransport,
    Model,
    RejectedError,
    Request,
    Response,
    ServerFailureError,
    TimedOutError,
    Transport,
    TransportError,
    TransportName,
)
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
def test_hooks_see_every_request_and_how_it_ended(client_server: Server, transport: TransportName) -> None:
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
    seen = [
        (each.model, each.url, each.request_id, each.timeout_s, each.inputs["x"].item()) for _, each in events.requests
    ]
    assert seen == [("picky", url, "a-1", 9, 4), ("picky", url, "", 5, -1)]
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


def doubled(request: Request) -> dict[str, Any]:
    return {"y": 2 * request.inputs["x"]}


def mock(answer: Any = doubled) -> MockTransport:
    return MockTransport(answer, inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])})


def predict(kind: str, array: Any, **arguments: Any) -> Any:
    async def awaited() -> Any:
        async with AsyncModel("doubler", **arguments) as model:
            return await model.predict(array)

    if kind == "async":
        return asyncio.run(awaited())
    with Model("doubler", **arguments) as model:
        return model.predict(array)


BOTH = pytest.mark.parametrize("kind", ["blocking", "async"])


@BOTH
def test_a_mock_stands_in_for_a_server(kind: str) -> None:
    events, transport = Events(), mock()
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    assert predict(kind, rows, transport=transport, hooks=events.hooks, timeout_s=9).tolist() == (2 * rows).tolist()
    with pytest.raises(InvalidInputError, match="1 to 8 rows"):
        predict(kind, np.ones((9, 1), np.float32), transport=transport)
    assert len(events.responses) == len(transport.requests) == 1
    assert (transport.requests[0].model, transport.requests[0].timeout_s) == ("doubler", 9)


@BOTH
@pytest.mark.parametrize("error", [RejectedError("full"), ZeroDivisionError("of the user")])
def test_what_a_transport_raises_reaches_the_caller(kind: str, error: Exception) -> None:
    def fail(_: Request) -> Any:
        raise error

    with pytest.raises(type(error), match=str(error)):
        predict(kind, ONE, transport=mock(fail))


class Recording(Transport):
    """Around another one."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.seen = inner, list[str]()

    def describe(self, model: str, version: str) -> Any:
        self.seen.append("describe")
        return self.inner.describe(model, version)

    def infer(self, request: Request) -> Any:
        self.seen.append("infer")
        return self.inner.infer(request)

    def close(self) -> None:
        self.seen.append("close")


class Awaited(Recording):
    async def describe(self, model: str, version: str) -> Any:  # type: ignore[override]
        return super().describe(model, version)

    async def infer(self, request: Request) -> Any:  # type: ignore[override]
        return super().infer(request)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


@pytest.mark.parametrize(("kind", "wrapper"), [("blocking", Recording), ("async", Recording), ("async", Awaited)])
def test_a_transport_can_wrap_another_one(kind: str, wrapper: type[Recording]) -> None:
    recording = wrapper(mock())
    assert predict(kind, ONE, transport=recording).tolist() == [[2]]
    assert recording.seen == ["describe", "infer", "close"]


def test_what_is_no_transport_is_refused() -> None:
    with pytest.raises(TransportError, match="Model is blocking") as failure:
        predict("blocking", ONE, transport=Awaited(mock()))
    assert (failure.value.model, failure.value.url) == ("doubler", "localhost")
    with pytest.raises(TransportError, match="it returned int"):
        predict("blocking", ONE, transport=mock(lambda _: 3))
