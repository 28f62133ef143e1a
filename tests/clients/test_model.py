"""`Model` and `AsyncModel` on a real server: answers over every transport, errors by kind, deadlines, cancellation."""

import asyncio
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from client_calls import TRANSPORTS, Gate, address, counted, waiting
from numpy.typing import NDArray

from clients import (
    AsyncModel,
    ClientError,
    ClosedError,
    InvalidInputError,
    Model,
    NotReadyError,
    RejectedError,
    TimedOutError,
    TransportName,
)
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server

ONE = np.ones((1, 1), np.float32)


def pair(rows: int, length: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(rows * 1000 + length)
    return rng.integers(0, 9, (rows, length)).astype(np.float32), rng.integers(0, 9, (rows, 2)).astype(np.int32)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_gives_the_same_answers(client_server: Server, transport: TransportName) -> None:
    url = address(client_server, transport)
    with Model("pair", url=url, transport=transport) as model:
        # Grows, shrinks and grows: regions are reused, replaced, and never show what was in them before.
        for rows, length in [(1, 3), (8, 100_000), (2, 0), (3, 5), (8, 200_000), (1, 3)]:
            a, b = pair(rows, length)
            total, twice = model.predict(a, b)
            np.testing.assert_array_equal(total, (a.sum(axis=1) + b.sum(axis=1))[:, None])
            np.testing.assert_array_equal(twice, 2 * a)
            twice[:] = 0  # the caller's own
    with Model("texts", url=url, transport=transport) as model:
        for words in (["a", "bcd", ""], ["x" * 300, "y", "z"], ["q"]):
            answer = model.predict(np.array([words, words]))
            assert answer.tolist() == [[(word * len(word)).encode() for word in words]] * 2
    with Model("unbatched", url=url, transport=transport) as model:
        assert model.predict(np.arange(20_000)).tolist() == list(range(20_000))[::-1]
    with Model("wide", url=url, transport=transport) as model:
        answer = model.predict(np.array([[3.0], [4.0]], np.float32))
        assert answer.shape == (2, 1 << 20)
        assert (answer == [[3], [4]]).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_calls_at_once_get_their_own_answers(client_server: Server, transport: TransportName) -> None:
    async def concurrently() -> None:
        async with AsyncModel("pair", url=address(client_server, transport), transport=transport) as model:
            cases = [pair(1 + number % 3, 10 + number * 300) for number in range(60)]
            answers = await asyncio.gather(*(model.predict(a, b) for a, b in cases))
        for (a, _), (_, twice) in zip(cases, answers, strict=True):
            np.testing.assert_array_equal(twice, 2 * a)

    asyncio.run(concurrently())


def test_threads_share_a_model(client_server: Server) -> None:
    right: list[bool] = []
    with Model("pair", url=client_server.grpc_url, transport="shared_memory") as model:

        def calls(number: int) -> None:
            a, b = pair(2, 5000 + number)
            right.extend(bool((model.predict(a, b)[1] == 2 * a).all()) for _ in range(20))

        threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert right == [True] * 160


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_id_and_parameters_arrive(client_server: Server, transport: TransportName) -> None:
    parameters: dict[str, str | int | bool] = {"text": "x", "count": 3, "flag": True}
    with Model("asked", url=address(client_server, transport), transport=transport) as model:
        received = json.loads(model.predict(ONE, request_id="a-1", parameters=parameters).item())
    assert received == {"id": "a-1", "parameters": parameters}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_call_that_does_not_fit_is_not_sent(client_server: Server, transport: TransportName) -> None:
    with Model("picky", url=address(client_server, transport), transport=transport) as model:
        before = Counters.read(client_server.grpc_url, "picky")
        with pytest.raises(InvalidInputError, match="1 to 8 rows"):
            model.predict(np.ones((9, 1), np.float32))
        assert Counters.read(client_server.grpc_url, "picky") == before
        assert model.predict(4 * ONE).item() == 2
    with pytest.raises(NotReadyError, match="'picky' is not ready there"):
        Model("picky", url=address(client_server, transport), transport=transport, version=7)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_deadline_ends_the_call_and_only_the_call(
    client_server: Server, transport: TransportName, gate: Gate
) -> None:
    url = address(client_server, transport)
    with Model("slow", url=url, transport=transport, timeout_s=30) as model:
        with pytest.raises(TimedOutError, match=r"no answer within 0\.2 s"):
            model.predict(gate.rows(), timeout_s=0.2)
        gate.open()
        # The model still runs the first request, and the next one has memory that nobody else writes to.
        assert model.predict(0 * ONE).item() > 0


def test_a_full_queue_rejects(client_server: Server, gate: Gate) -> None:
    """One request runs, the queue takes three, and the others are refused."""

    async def crowd() -> list[Any]:
        async with AsyncModel("queued", url=client_server.grpc_url) as model:
            calls = [asyncio.create_task(model.predict(gate.rows()))]
            assert await asyncio.to_thread(gate.has)
            calls += [asyncio.create_task(model.predict(gate.rows())) for _ in range(11)]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 8:
                done, _ = await asyncio.wait(calls, timeout=0.1)
            gate.open()
            return await asyncio.gather(*calls, return_exceptions=True)

    rejected = [end for end in asyncio.run(crowd()) if isinstance(end, ClientError)]
    assert [type(error) for error in rejected] == [RejectedError] * 8
    assert "Exceeds maximum queue size" in str(rejected[0])


@pytest.mark.parametrize("transport", ["shared_memory", "grpc"])
@pytest.mark.parametrize(("survives", "executions"), [((2, 0), 2), ((2, 59), 4)])
def test_a_cancelled_request_in_the_queue_runs_only_on_a_server_that_would_crash(
    client_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    transport: TransportName,
    gate: Gate,
    survives: tuple[int, int],
    executions: int,
) -> None:
    monkeypatch.setattr("clients._grpc.SURVIVES", survives)
    before = Counters.read(client_server.grpc_url, "queued")

    async def give_up() -> None:
        async with AsyncModel("queued", url=client_server.grpc_url, transport=transport) as model:
            first = asyncio.create_task(model.predict(gate.rows()))
            assert await asyncio.to_thread(gate.has)
            left = [asyncio.create_task(model.predict(gate.rows())) for _ in range(2)]
            assert await asyncio.to_thread(waiting, client_server, "queued", 2)
            for task in left:
                task.cancel()
            results = await asyncio.gather(*left, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            # It is sent after the cancellations, so the server has these as well.
            last = asyncio.create_task(model.predict(0 * ONE))
            assert await asyncio.to_thread(waiting, client_server, "queued", 3)
            gate.open()
            await first
            assert (await last).item() > 0

    asyncio.run(give_up())
    counted(client_server, "queued", before, rows=executions)


def test_the_deadline_reaches_the_queue(client_server: Server, gate: Gate) -> None:
    before = Counters.read(client_server.grpc_url, "queued")

    async def expire() -> None:
        async with AsyncModel("queued", url=client_server.grpc_url) as model:
            assert model.metadata.longest_server_deadline_s == math.inf
            first = asyncio.create_task(model.predict(gate.rows()))
            assert await asyncio.to_thread(gate.has)
            with pytest.raises(TimedOutError):
                await model.predict(0 * ONE, timeout_s=0.2)
            assert await asyncio.to_thread(waiting, client_server, "queued", 0)
            gate.open()
            await first
            assert (await model.predict(0 * ONE)).item() > 0

    asyncio.run(expire())
    counted(client_server, "queued", before, rows=2)


def test_priority_goes_first(client_server: Server, gate: Gate) -> None:
    async def crowd() -> tuple[float, ...]:
        async with AsyncModel("queued", url=client_server.grpc_url) as model:
            first = asyncio.create_task(model.predict(gate.rows()))
            assert await asyncio.to_thread(gate.has)
            low = asyncio.create_task(model.predict(0 * ONE))
            assert await asyncio.to_thread(waiting, client_server, "queued", 1)
            high = asyncio.create_task(model.predict(0 * ONE, priority=1))
            assert await asyncio.to_thread(waiting, client_server, "queued", 2)
            gate.open()
            return tuple([(await task).item() for task in (first, high, low)])

    order = asyncio.run(crowd())
    assert list(order) == sorted(order)


def test_a_call_after_close_is_an_error(client_server: Server) -> None:
    model = Model("picky", url=client_server.grpc_url)
    model.close()
    model.close()
    with pytest.raises(ClosedError, match="was closed"):
        model.predict(ONE)

    async def closed() -> None:
        async with AsyncModel("picky", url=client_server.grpc_url) as other:
            pass
        with pytest.raises(ClosedError):
            await other.predict(ONE)

    asyncio.run(closed())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_ends_calls_in_flight_with_an_error(
    client_server: Server, transport: TransportName, gate: Gate
) -> None:
    async def leave() -> None:
        async with AsyncModel("slow", url=address(client_server, transport), transport=transport) as model:
            calls = [asyncio.create_task(model.predict(gate.rows())) for _ in range(2)]
            assert await asyncio.to_thread(gate.has)
            calls[1].cancel()
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.2, gate.open)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        # HTTP has no cancelling: what is on its way there is answered.
        assert isinstance(answers[0], ClosedError if transport == "grpc" else np.ndarray)
        assert isinstance(answers[1], asyncio.CancelledError)

    asyncio.run(leave())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_waits_for_the_calls_of_other_threads(
    client_server: Server, transport: TransportName, gate: Gate
) -> None:
    """Nothing is cancelled over HTTP, nor on a server that would not survive it: what is on its way is answered."""
    model = Model("slow", url=address(client_server, transport), transport=transport)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(model.predict, gate.rows())
        assert gate.has()
        threading.Timer(0.2, gate.open).start()
        model.close()
        assert call.exception() is None
    with pytest.raises(ClosedError):
        model.predict(ONE)
