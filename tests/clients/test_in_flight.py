"""`max_in_flight`: the number of requests in flight, and the memory of callers that wait."""

import asyncio
import tracemalloc
from typing import Any

import numpy as np
import pytest
from client_calls import Gate, address, counted, ready

from clients import AsyncModel, ClosedError, InvalidInputError, TimedOutError, TransportName
from serve.launcher import Server
from serve.management.statistics import Counters

ONE = np.ones((1, 1), np.float32)
CALLERS = 1000


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, "8"])
def test_a_bound_is_a_number_of_requests(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_in_flight is"):
        AsyncModel("slow", max_in_flight=wrong)


@pytest.mark.server
def test_callers_that_wait_have_encoded_no_request(client_server: Server) -> None:
    a, b = np.ones((8, 1024), np.float32), np.ones((8, 2), np.int32)

    async def crowd() -> int:
        async with AsyncModel("pair", url=client_server.grpc_url, transport="grpc", max_in_flight=16) as model:
            tracemalloc.start()
            tasks = [asyncio.create_task(model.predict(a, b)) for _ in range(CALLERS)]
            await asyncio.sleep(0)  # every task has come as far as it can without an answer
            allocated, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            answers = await asyncio.gather(*tasks)
            assert all((twice == 2 * a).all() for _, twice in answers)
        return allocated

    allocated = asyncio.run(crowd())
    assert allocated / CALLERS < 8 << 10  # the request has 32 KB


@pytest.mark.server
@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_dropped_calls_keep_their_place_and_deadlines_count_while_waiting(
    client_server: Server, transport: TransportName, gate: Gate
) -> None:
    before = Counters.read(client_server.grpc_url, "slow")

    async def scenario() -> None:
        url = address(client_server, transport)
        async with AsyncModel("slow", url=url, transport=transport, max_in_flight=1) as model:
            task = asyncio.create_task(model.predict(gate.rows()))
            assert await asyncio.to_thread(gate.has)
            task.cancel()
            with pytest.raises(TimedOutError, match="max_in_flight"):
                await model.predict(0 * ONE, timeout_s=0.1)
            left = asyncio.create_task(model.predict(0 * ONE))
            await ready()
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            gate.open()
            assert (await model.predict(0 * ONE)).item() > 0

    asyncio.run(scenario())
    # The two that waited for a place were never sent.
    counted(client_server, "slow", before, rows=2)


@pytest.mark.server
def test_callers_that_wait_raise_closed_error_at_the_end(client_server: Server, gate: Gate) -> None:
    async def scenario() -> list[Any]:
        async with AsyncModel("slow", url=client_server.grpc_url, transport="grpc", max_in_flight=1) as model:
            tasks = [asyncio.create_task(model.predict(gate.rows())) for _ in range(3)]
            assert await asyncio.to_thread(gate.has)
            asyncio.get_running_loop().call_later(0.2, gate.open)
        return await asyncio.gather(*tasks, return_exceptions=True)

    before = Counters.read(client_server.grpc_url, "slow")
    assert [type(end) for end in asyncio.run(scenario())] == [ClosedError] * 3
    counted(client_server, "slow", before, rows=1)
