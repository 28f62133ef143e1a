"""Calls of one process that are merged into a request: the server's counters, and errors that stay with their call."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients import AsyncModel, ClosedError, ServerFailureError, TimedOutError
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server


def value(number: float, rows: int = 1) -> NDArray[Any]:
    return np.full((rows, 1), number, np.float32)


Scenario = Callable[[AsyncModel], Coroutine[Any, Any, None]]


def counted(server: Server, name: str, scenario: Scenario, **options: Any) -> Counters:
    """What the server counted while `scenario` ran with a coalescing model."""

    async def inside() -> None:
        async with AsyncModel(name, url=server.grpc_url, coalesce=True, **options) as model:
            await scenario(model)

    before = Counters.read(server.grpc_url, name)
    asyncio.run(inside())
    # The server answers first and counts then.
    return settled(server, name, before)


def settled(server: Server, name: str, before: Counters) -> Counters:
    async def steady() -> Counters:
        last = Counters.read(server.grpc_url, name)
        while True:
            await asyncio.sleep(0.05)
            now = Counters.read(server.grpc_url, name)
            if now == last:
                return now
            last = now

    return asyncio.run(steady()) - before


@pytest.mark.parametrize("transport", ["grpc", "shared_memory", "http"])
def test_calls_together_are_full_requests(client_server: Server, transport: str) -> None:
    url = client_server.http_url if transport == "http" else client_server.grpc_url

    async def scenario(_: AsyncModel) -> None:
        async with AsyncModel("picky", url=url, transport=transport, coalesce=True) as model:  # type: ignore[arg-type]
            answers = await asyncio.gather(*(model.predict(value(number**2)) for number in range(17)))
        assert [answer.item() for answer in answers] == list(range(17))

    counters = counted(client_server, "picky", scenario)
    assert (counters.requests, counters.rows, counters.batches) == (3, 17, {8: 2, 1: 1})


def test_an_idle_server_gets_a_call_at_once(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        for number in range(5):
            assert (await model.predict(value(number**2))).item() == number

    counters = counted(client_server, "picky", scenario)
    assert (counters.requests, counters.batches) == (5, {1: 5})


def test_calls_that_wait_for_an_answer_leave_together(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(value(0.3)))
        await asyncio.sleep(0.1)
        rest = []
        for _ in range(5):
            rest.append(asyncio.create_task(model.predict(value(0))))
            await asyncio.sleep(0.01)
        await asyncio.gather(first, *rest)

    counters = counted(client_server, "slow", scenario)
    assert (counters.requests, counters.batches) == (2, {1: 1, 5: 1})


def test_calls_of_several_rows_never_exceed_the_limit(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        sizes = [3, 3, 3, 8, 1, 2, 5]
        answers = await asyncio.gather(*(model.predict(value(size**2, size)) for size in sizes))
        assert [answer.tolist() for answer in answers] == [[[float(size)]] * size for size in sizes]

    counters = counted(client_server, "picky", scenario)
    assert (counters.rows, counters.requests) == (25, 4)


def test_one_bad_call_fails_alone(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        answers: list[Any] = await asyncio.gather(
            *(model.predict(value(number)) for number in (1, 4, -1, 9, 16)), return_exceptions=True
        )
        assert [answer.item() for number, answer in enumerate(answers) if number != 2] == [1, 2, 3, 4]
        assert isinstance(answers[2], ServerFailureError)
        assert "no roots" in str(answers[2])

    counters = counted(client_server, "picky", scenario)
    # The merged request of five, and each of the five once more, alone. The Python backend counts failures as served.
    assert (counters.requests + counters.failed_requests, counters.rows) == (6, 10)


def test_calls_that_are_sent_again_fit_into_a_short_queue(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        times = (0.03, 0.03, -1, 0.03, 0.03, 0.03, 0.03, 0.03)
        answers: list[Any] = await asyncio.gather(
            *(model.predict(value(seconds)) for seconds in times), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [np.ndarray] * 2 + [ServerFailureError] + [np.ndarray] * 5

    counters = counted(client_server, "narrow", scenario)
    assert (counters.requests + counters.failed_requests, counters.batches) == (9, {8: 1, 1: 8})


@pytest.mark.parametrize("number", [0, 2])
def test_a_call_that_is_cancelled_is_not_sent_again(client_server: Server, number: int) -> None:
    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(value(0.3), request_id="first"))
        await asyncio.sleep(0.1)
        together = [asyncio.create_task(model.predict(value(seconds))) for seconds in (0, -1, 0)]
        await asyncio.sleep(0.1)
        # Too many rows to be executed with the three, so that their failure is known while it runs.
        last = asyncio.create_task(model.predict(value(0.5, 8), request_id="last"))
        await first
        await asyncio.sleep(0.2)
        # The first of the three was sent again and waits in the server's queue, the others' turn has not come.
        together[number].cancel()
        answers = await asyncio.gather(*together, last, return_exceptions=True)
        kinds: list[type] = [np.ndarray, ServerFailureError, np.ndarray, np.ndarray]
        kinds[number] = asyncio.CancelledError
        assert [type(answer) for answer in answers] == kinds

    counters = counted(client_server, "narrow", scenario)
    # "first", the three, "last", and two of the three again. The first of them may have been on its way by then; it is
    # not called back, because the server would not survive that.
    assert counters.requests + counters.failed_requests in ({5, 6} if number == 0 else {5})


def test_calls_are_sent_alone_if_the_rows_of_the_answer_do_not_match(client_server: Server) -> None:
    """The model always answers one row, so the rows of two merged calls cannot be assigned."""

    async def scenario(model: AsyncModel) -> None:
        answers = await asyncio.gather(*(model.predict(value(1)) for _ in range(2)))
        assert [answer.shape for answer in answers] == [(1, 1), (1, 1)]

    assert counted(client_server, "asked", scenario).requests == 3


def test_a_cancelled_call_leaves_its_neighbours(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(value(0.2)))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(model.predict(value(0.2))) for _ in range(5)]
        await asyncio.sleep(0.05)
        waiting[1].cancel()
        await first
        await asyncio.sleep(0.1)
        waiting[3].cancel()  # it is on its way: the others' rows stay theirs
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        cancelled = [isinstance(answer, asyncio.CancelledError) for answer in answers]
        assert cancelled == [False, True, False, True, False]

    counters = counted(client_server, "slow", scenario)
    assert (counters.requests, counters.batches) == (2, {1: 1, 4: 1})


def test_a_deadline_ends_one_call(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        calls = [model.predict(value(0.3), timeout_s=0.1), *(model.predict(value(0.3)) for _ in range(3))]
        answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], TimedOutError)
        assert all(answer.item() > 0 for answer in answers[1:])

    counters = counted(client_server, "slow", scenario)
    assert (counters.requests, counters.batches) == (1, {4: 1})


def test_only_equal_calls_are_merged(client_server: Server) -> None:
    async def shapes(model: AsyncModel) -> None:
        second = np.ones((1, 2), np.int32)
        lengths = [5, 6, 5, 6, 7]
        answers = await asyncio.gather(*(model.predict(np.ones((1, length), np.float32), second) for length in lengths))
        assert [total.item() for total, _ in answers] == [length + 2 for length in lengths]

    counters = counted(client_server, "pair", shapes)
    assert (counters.requests, counters.rows) == (3, 5)

    async def terms(model: AsyncModel) -> None:
        calls: list[dict[str, Any]] = [{}, {"parameters": {"a": 1}}, {"parameters": {"a": 1}}, {"request_id": "x"}]
        calls.append({"parameters": {"a": True}})
        await asyncio.gather(*(model.predict(value(1), **call) for call in calls))

    counters = counted(client_server, "picky", terms)
    assert (counters.requests, counters.rows) == (4, 5)


@pytest.mark.parametrize(("name", "array"), [("unbatched", np.arange(3)), ("ragged", np.ones((1, 3), np.float32))])
def test_calls_without_a_common_shape_are_never_merged(client_server: Server, name: str, array: NDArray[Any]) -> None:
    async def scenario(model: AsyncModel) -> None:
        await asyncio.gather(*(model.predict(array) for _ in range(4)))

    assert counted(client_server, name, scenario).requests == 4


def test_closing_ends_calls_that_wait(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(value(0.3)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(model.predict(value(0)))
        await asyncio.sleep(0.05)
        await model.close()
        answers = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(answer) for answer in answers] == [ClosedError, ClosedError]

    counted(client_server, "slow", scenario)
