"""Calls of one process that are merged into a request: the server's counters, and errors that stay with their call."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from client_calls import Gate, ready, waiting
from numpy.typing import NDArray
from processes import wait_until

from clients import AsyncModel, ClosedError, ServerFailureError, TimedOutError
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server


def value(number: float, rows: int = 1) -> NDArray[Any]:
    return np.full((rows, 1), number, np.float32)


Scenario = Callable[[AsyncModel], Coroutine[Any, Any, None]]


def counted(server: Server, name: str, scenario: Scenario, *, rows: int, **options: Any) -> Counters:
    """What the server counted while `scenario` ran with a coalescing model, which was so many rows."""

    async def inside() -> None:
        async with AsyncModel(name, url=server.grpc_url, coalesce=True, **options) as model:
            await scenario(model)

    before = Counters.read(server.grpc_url, name)
    asyncio.run(inside())
    # The server answers first and counts then.
    assert wait_until(lambda: (Counters.read(server.grpc_url, name) - before).rows >= rows, seconds=30)
    counters = Counters.read(server.grpc_url, name) - before
    assert counters.rows == rows
    return counters


@pytest.mark.parametrize("transport", ["grpc", "shared_memory", "http"])
def test_calls_together_are_full_requests(client_server: Server, transport: str) -> None:
    url = client_server.http_url if transport == "http" else client_server.grpc_url

    async def scenario(_: AsyncModel) -> None:
        async with AsyncModel("picky", url=url, transport=transport, coalesce=True) as model:  # type: ignore[arg-type]
            answers = await asyncio.gather(*(model.predict(value(number**2)) for number in range(17)))
        assert [answer.item() for answer in answers] == list(range(17))

    counters = counted(client_server, "picky", scenario, rows=17)
    assert (counters.requests, counters.batches) == (3, {8: 2, 1: 1})


def test_calls_that_wait_for_an_answer_leave_together(client_server: Server, gate: Gate) -> None:
    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(gate.rows()))
        assert await asyncio.to_thread(gate.has)
        rest = []
        for _ in range(5):
            rest.append(asyncio.create_task(model.predict(value(0))))
            await ready()
        gate.open()
        await asyncio.gather(first, *rest)

    counters = counted(client_server, "slow", scenario, rows=6)
    assert (counters.requests, counters.batches) == (2, {1: 1, 5: 1})


def test_calls_of_several_rows_never_exceed_the_limit(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        sizes = [3, 3, 3, 8, 1, 2, 5]
        answers = await asyncio.gather(*(model.predict(value(size**2, size)) for size in sizes))
        assert [answer.tolist() for answer in answers] == [[[float(size)]] * size for size in sizes]

    assert counted(client_server, "picky", scenario, rows=25).requests == 4


def test_one_bad_call_fails_alone(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        answers: list[Any] = await asyncio.gather(
            *(model.predict(value(number)) for number in (1, 4, -1, 9, 16)), return_exceptions=True
        )
        assert [answer.item() for number, answer in enumerate(answers) if number != 2] == [1, 2, 3, 4]
        assert isinstance(answers[2], ServerFailureError)
        assert "no roots" in str(answers[2])

    counters = counted(client_server, "picky", scenario, rows=10)
    # The merged request of five, and each of the five once more, alone. The Python backend counts failures as served.
    assert counters.requests + counters.failed_requests == 6


def test_calls_that_are_sent_again_fit_into_a_short_queue(client_server: Server) -> None:
    async def scenario(model: AsyncModel) -> None:
        numbers = (0, 0, -1, 0, 0, 0, 0, 0)
        answers: list[Any] = await asyncio.gather(
            *(model.predict(value(number)) for number in numbers), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [np.ndarray] * 2 + [ServerFailureError] + [np.ndarray] * 5

    counters = counted(client_server, "narrow", scenario, rows=16)
    assert (counters.requests + counters.failed_requests, counters.batches) == (9, {8: 1, 1: 8})


@pytest.mark.parametrize("number", [0, 2])
def test_a_call_that_is_cancelled_is_not_sent_again(
    client_server: Server, make_gate: Callable[[], Gate], number: int
) -> None:
    begin, end = make_gate(), make_gate()

    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(begin.rows(), request_id="first"))
        assert await asyncio.to_thread(begin.has)
        together = [asyncio.create_task(model.predict(value(each))) for each in (0, -1, 0)]
        assert await asyncio.to_thread(waiting, client_server, "narrow", 1)
        # Too many rows to be executed with the three, so that their failure is known while it runs.
        last = asyncio.create_task(model.predict(end.rows(8), request_id="last"))
        assert await asyncio.to_thread(waiting, client_server, "narrow", 2)
        begin.open()
        await first
        assert await asyncio.to_thread(end.has)
        assert await asyncio.to_thread(waiting, client_server, "narrow", 1)
        # The first of the three was sent again and waits in the server's queue, the others' turn has not come.
        together[number].cancel()
        await ready()
        end.open()
        answers = await asyncio.gather(*together, last, return_exceptions=True)
        kinds: list[type] = [np.ndarray, ServerFailureError, np.ndarray, np.ndarray]
        kinds[number] = asyncio.CancelledError
        assert [type(answer) for answer in answers] == kinds

    # "first", the three, "last", and of the three again: the first, which is on its way when it is cancelled and is
    # not called back, because the server would not survive that; the second; and the third, unless it was cancelled.
    counters = counted(client_server, "narrow", scenario, rows=1 + 3 + 8 + (3 if number == 0 else 2))
    assert counters.requests + counters.failed_requests == (6 if number == 0 else 5)


def test_calls_are_sent_alone_if_the_rows_of_the_answer_do_not_match(client_server: Server) -> None:
    """The model always answers one row, so the rows of two merged calls cannot be assigned."""

    async def scenario(model: AsyncModel) -> None:
        answers = await asyncio.gather(*(model.predict(value(1)) for _ in range(2)))
        assert [answer.shape for answer in answers] == [(1, 1), (1, 1)]

    assert counted(client_server, "asked", scenario, rows=4).requests == 3


def test_a_cancelled_call_leaves_its_neighbours(client_server: Server, make_gate: Callable[[], Gate]) -> None:
    begin, end = make_gate(), make_gate()

    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(begin.rows()))
        assert await asyncio.to_thread(begin.has)
        rest = [asyncio.create_task(model.predict(end.rows())) for _ in range(5)]
        await ready()
        rest[1].cancel()
        begin.open()
        await first
        assert await asyncio.to_thread(end.has)
        rest[3].cancel()  # it is on its way: the others' rows stay theirs
        await ready()
        end.open()
        answers = await asyncio.gather(*rest, return_exceptions=True)
        cancelled = [isinstance(answer, asyncio.CancelledError) for answer in answers]
        assert cancelled == [False, True, False, True, False]

    counters = counted(client_server, "slow", scenario, rows=5)
    assert (counters.requests, counters.batches) == (2, {1: 1, 4: 1})


def test_a_deadline_ends_one_call(client_server: Server, gate: Gate) -> None:
    async def scenario(model: AsyncModel) -> None:
        late, *others = (
            asyncio.create_task(model.predict(gate.rows(), timeout_s=timeout_s)) for timeout_s in (1, None, None, None)
        )
        with pytest.raises(TimedOutError):
            await late
        assert not any(other.done() for other in others)
        gate.open()
        assert all(answer.item() > 0 for answer in await asyncio.gather(*others))

    counters = counted(client_server, "slow", scenario, rows=4)
    assert (counters.requests, counters.batches) == (1, {4: 1})


def test_only_equal_calls_are_merged(client_server: Server) -> None:
    async def shapes(model: AsyncModel) -> None:
        second = np.ones((1, 2), np.int32)
        lengths = [5, 6, 5, 6, 7]
        answers = await asyncio.gather(*(model.predict(np.ones((1, length), np.float32), second) for length in lengths))
        assert [total.item() for total, _ in answers] == [length + 2 for length in lengths]

    assert counted(client_server, "pair", shapes, rows=5).requests == 3

    async def terms(model: AsyncModel) -> None:
        calls: list[dict[str, Any]] = [{}, {"parameters": {"a": 1}}, {"parameters": {"a": 1}}, {"request_id": "x"}]
        calls.append({"parameters": {"a": True}})
        await asyncio.gather(*(model.predict(value(1), **call) for call in calls))

    assert counted(client_server, "picky", terms, rows=5).requests == 4


@pytest.mark.parametrize(("name", "array"), [("unbatched", np.arange(3)), ("ragged", np.ones((1, 3), np.float32))])
def test_calls_without_a_common_shape_are_never_merged(client_server: Server, name: str, array: NDArray[Any]) -> None:
    async def scenario(model: AsyncModel) -> None:
        await asyncio.gather(*(model.predict(array) for _ in range(4)))

    rows = 4
    assert counted(client_server, name, scenario, rows=rows).requests == 4


def test_closing_ends_calls_that_wait(client_server: Server, gate: Gate) -> None:
    async def scenario(model: AsyncModel) -> None:
        first = asyncio.create_task(model.predict(gate.rows()))
        assert await asyncio.to_thread(gate.has)
        second = asyncio.create_task(model.predict(value(0)))
        await ready()
        asyncio.get_running_loop().call_later(0.2, gate.open)  # the answer is awaited, though nobody gets it
        await model.close()
        answers = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(answer) for answer in answers] == [ClosedError, ClosedError]

    counted(client_server, "slow", scenario, rows=1)
