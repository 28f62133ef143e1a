"""gRPC by grpcio, against a server whose answers the test gives: faults, deadlines, and callers that leave."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from client_calls import until
from grpc_server import GrpcServer, double, outputs, part

from clients import (
    AsyncModel,
    ClientError,
    ClosedError,
    Model,
    RejectedError,
    ServerFailureError,
    TimedOutError,
    TransportError,
)
from clients._grpc import _left_open

ONE = np.ones((1, 1), np.float32)
Call = Callable[..., Any]


def blocking(url: str, array: Any = ONE, *, timeout_s: float | None = 20, **options: Any) -> Any:
    with Model("m", url=url, transport="grpc", **options) as model:
        return model.predict(array, timeout_s=timeout_s)


def awaiting(url: str, array: Any = ONE, *, timeout_s: float | None = 20, **options: Any) -> Any:
    async def call() -> Any:
        async with AsyncModel("m", url=url, transport="grpc", **options) as model:
            return await model.predict(array, timeout_s=timeout_s)

    return asyncio.run(call())


BOTH = pytest.mark.parametrize("call", [blocking, awaiting])


@BOTH
def test_an_answer_is_compared_with_the_contract(answering: GrpcServer, call: Call) -> None:
    two, one = np.ones((2, 1), np.float32), np.ones((1, 1), np.float32)
    doubled = outputs(("y", one))
    doubled.MergeFrom(doubled)
    cut = outputs(("y", one))
    cut.raw_output_contents[0] = b"abc"
    more = outputs(("y", one))
    more.raw_output_contents.append(b"abcd")
    huge = outputs(("y", one))
    huge.outputs[0].shape[:] = [0, 1 << 62]
    for answer in (outputs(("y", two)), outputs(("y", one), datatype="INT32"), outputs(("x", one)), outputs()):
        answering.infer = lambda _, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(ServerFailureError):
            call(answering.url)
    for answer in (doubled, cut, more, huge):
        answering.infer = lambda _, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(ServerFailureError):
            call(answering.url)
    answering.infer = lambda _: outputs(("y", two))
    assert call(answering.url, rows_may_differ=True).shape == (2, 1)


@BOTH
def test_an_answer_above_the_limit_is_refused(answering: GrpcServer, call: Call) -> None:
    large = np.ones((50_000, 1), np.float32)
    assert call(answering.url, large, max_answer_bytes=300_000).shape == large.shape
    with pytest.raises(ServerFailureError, match="Raise max_answer_bytes"):
        call(answering.url, large, max_answer_bytes=100_000)


@BOTH
@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
def test_a_deadline_is_kept(answering: GrpcServer, call: Call, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old server is told nothing of it, and `close` waits for its answer."""
    monkeypatch.setattr("clients._grpc.CLOSE_S", 0.1)
    monkeypatch.setattr("clients._async_grpc.CLOSE_S", 0.1)
    answering.version, left = version, list[float | None]()

    def hang(request: Any) -> Any:
        answering.over.wait(20)
        return double(request)

    answering.infer = hang
    began = time.monotonic()
    with pytest.raises(TimedOutError, match=r"no answer within 0\.3 s") as late:
        call(answering.url, timeout_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert (late.value.retryable, left) == (False, [])


@BOTH
@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "[request id: 1] Exceeds maximum queue size", RejectedError),
        (grpc.StatusCode.UNAVAILABLE, "upstream request timeout", TimedOutError),
        (grpc.StatusCode.INTERNAL, "the model's own words", ServerFailureError),
    ],
)
def test_a_status_becomes_an_error(
    answering: GrpcServer, call: Call, status: grpc.StatusCode, text: str, kind: type[ClientError]
) -> None:
    answering.refused["ModelInfer"] = status, text
    with pytest.raises(kind) as refused:
        call(answering.url)
    assert (refused.value.text, refused.value.status, refused.value.retryable) == (
        text,
        status.name,
        kind is RejectedError,
    )
    assert answering.asked.count("ModelInfer") == 1


def test_calls_of_callers_that_have_left_do_not_crowd_out_the_living(answering: GrpcServer) -> None:
    """The server refuses more than forty requests at once; sixty were sent, and left, before forty-six others."""
    at_once, running, opened = list[int](), set[int](), threading.Event()

    def queued(request: Any) -> Any:
        running.add(threading.get_ident())
        at_once.append(len(running))
        opened.wait(20)
        time.sleep(0.01)
        running.discard(threading.get_ident())
        return double(request)

    async def scenario() -> list[Any]:
        async with AsyncModel("m", url=answering.url, transport="grpc") as model:
            left = [asyncio.create_task(model.predict(ONE)) for _ in range(60)]
            await until(lambda: len(running) == 60)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            living = [asyncio.create_task(model.predict(ONE)) for _ in range(46)]
            await asyncio.sleep(0.1)
            assert len(running) == 60  # none was sent
            opened.set()
            return await asyncio.gather(*living)

    answering.infer = queued
    assert [answer.item() for answer in asyncio.run(scenario())] == [2.0] * 46
    assert max(at_once[60:]) <= 46 + 16


def test_max_in_flight_counts_from_nothing_in_the_next_loop(answering: GrpcServer) -> None:
    """A request of the loop that has ended gives its place back there."""
    model = AsyncModel("m", url=answering.url, transport="grpc", max_in_flight=2)

    async def begin() -> None:
        await model.__aenter__()
        await model.predict(ONE)
        asyncio.create_task(model.predict(ONE))  # noqa: RUF006
        await asyncio.sleep(0)

    asyncio.run(begin())

    async def again() -> int:
        await asyncio.gather(*(model.predict(ONE) for _ in range(5)))
        return model._in_flight.count

    assert asyncio.run(again()) == 0


@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
def test_closing_ends_tasks_that_wait(answering: GrpcServer, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients._async_grpc.CLOSE_S", 0.1)
    answering.version = version
    answering.infer = lambda request: answering.over.wait(20) and double(request)

    async def scenario() -> Any:
        async with AsyncModel("m", url=answering.url, transport="grpc") as model:
            task = asyncio.create_task(model.predict(ONE))
            await until(lambda: "ModelInfer" in answering.asked)
        return await asyncio.gather(task, return_exceptions=True)

    assert [type(end) for end in asyncio.run(scenario())] == [ClosedError]


def test_a_process_that_was_forked_is_told(answering: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model("m", url=answering.url, transport="grpc"):
        monkeypatch.setattr("clients._grpc._process", [1])
        with pytest.raises(TransportError, match="was forked from one that had used gRPC"):
            Model("m", url=answering.url, transport="grpc")


def test_a_stream_of_a_process_that_was_forked_is_refused(answering: GrpcServer) -> None:
    with Model("m", url=answering.url, transport="grpc") as model:
        process, model._process = model._process, 1
        with pytest.raises(ClosedError):
            list(model.stream(ONE))
        model._process = process


@BOTH
def test_ok_without_a_message_is_not_tritons(answering: GrpcServer, call: Call) -> None:
    answering.silent = True
    with pytest.raises(ServerFailureError):
        call(answering.url, max_answer_bytes=1 << 31)


def test_closing_wakes_a_caller_behind_those_who_have_left(
    answering: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and streams that were left count alike."""
    monkeypatch.setattr("clients._grpc.CLOSE_S", 0.1)
    monkeypatch.setattr("clients._grpc.MOST_ABANDONED", 2)
    answering.infer = lambda request: answering.over.wait(20) and double(request)

    def parts(_: Any) -> Any:
        yield part(1)
        answering.over.wait(20)

    answering.stream, ends = parts, list[Any]()
    model = Model("m", url=answering.url, transport="grpc")
    with contextlib.closing(model.stream(ONE)) as stream:
        next(stream)
    with pytest.raises(TimedOutError):
        model.predict(ONE, timeout_s=0.1)
    with pytest.raises(TimedOutError):
        list(model.stream(ONE, timeout_s=0.1))
    assert answering.asked.count("ModelStreamInfer") == 1

    def wait() -> None:
        try:
            model.predict(ONE)
        except ClosedError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    model.close()
    waiting.join(1)
    assert (len(ends), answering.asked.count("ModelInfer")) == (1, 1)


def test_a_call_without_a_thread_is_an_error_of_the_client(
    answering: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with Model("m", url=answering.url, transport="grpc") as model:
        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", refuse)
            with pytest.raises(ClientError, match="needs a thread"):
                model.predict(ONE)
            with pytest.raises(ClientError, match="needs a thread"):
                list(model.stream(ONE))
        assert not model._connections["grpc"]._unfinished
        assert model.predict(ONE).item() == 2


def test_what_nobody_holds_is_not_kept(answering: GrpcServer) -> None:
    """The threads of a model that was dropped end; the channels of event loops that have ended, too."""
    answering.version = "2.59.0"
    before = len(_left_open)
    model = AsyncModel("m", url=answering.url, transport="grpc")
    asyncio.run(model.__aenter__())
    for _ in range(2):
        asyncio.run(model.predict(ONE))
    assert (len(_left_open), model._connections["grpc"].survives) == (before, True)
    asyncio.run(model.close())
    answering.version = "2.51.0"
    calls = sum(thread.name == "triton-call" for thread in threading.enumerate())
    Model("m", url=answering.url, transport="grpc").predict(ONE, timeout_s=20)
    gc.collect()
    deadline = time.monotonic() + 5
    while sum(thread.name == "triton-call" for thread in threading.enumerate()) > calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)
