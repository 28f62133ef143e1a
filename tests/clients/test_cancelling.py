"""Callers that leave do not end the server: nothing is cancelled on the wire before the version that survives it."""

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_calls import Gate, counted, ready
from numpy.typing import NDArray
from processes import wait_until
from relay import RST_STREAM, Relay, relay
from server_processes import tritonserver

from clients import AsyncModel, ClosedError, Model, TimedOutError
from clients._grpc import survives
from serve.launcher import Server
from serve.management.statistics import Counters

ROOT = Path(__file__).parents[2]
ONE = np.ones((1, 1), np.float32)
CALLS = 1_500


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.51.0", False), ("2.58.0", False), ("2.59.0", True), ("2.100.0", True), ("10.1", True), ("v2.60", False)],
)
def test_which_versions_survive_cancellations(version: str, expected: bool) -> None:
    assert survives(version) is expected


@pytest.mark.server
@pytest.mark.parametrize("way", ["cancelled", "deadline", "coalesced"])
def test_callers_that_leave_do_not_end_the_server(client_server: Server, way: str) -> None:
    """Eight tasks leave after 0 to 6 ms, two wait; every answer that comes is checked."""
    before, rng, numbers = tritonserver(client_server.pid), random.Random(7), iter(range(CALLS))

    async def leaver(model: AsyncModel) -> None:
        for number in numbers:
            array, expected = case(way, number)
            soon = rng.uniform(0, 0.006)
            deadline = soon + 1e-6 if way == "deadline" else None
            task = asyncio.create_task(model.predict(array, timeout_s=deadline))
            if way != "deadline":
                await asyncio.sleep(soon)
                task.cancel()
            try:
                np.testing.assert_array_equal(await task, expected)
            except (asyncio.CancelledError, TimedOutError):
                continue

    async def waiter(model: AsyncModel) -> None:
        for number in numbers:
            array, expected = case(way, number)
            np.testing.assert_array_equal(await model.predict(array), expected)

    async def concurrently() -> None:
        name = "picky" if way == "coalesced" else "unbatched"
        async with AsyncModel(name, url=client_server.grpc_url, transport="grpc", coalesce=way == "coalesced") as model:
            async with asyncio.TaskGroup() as tasks:
                for kind in [leaver] * 8 + [waiter] * 2:
                    tasks.create_task(kind(model))
            await waiter(model)

    asyncio.run(concurrently())
    assert tritonserver(client_server.pid) == before


def case(way: str, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    if way == "coalesced":
        array = np.full((1, 1), number % 97, np.float32)
        return array, np.sqrt(array)
    row = np.arange(3) + number
    return row, row[::-1]


def all_ended(relayed: Relay) -> bool:
    gc.collect()  # a call that was cancelled holds its connection until then
    return wait_until(lambda: len(relayed.ended) == len(relayed.sent), seconds=10)


@pytest.mark.server
def test_nothing_is_cancelled_on_the_wire(client_server: Server, make_gate: Callable[[], Gate]) -> None:
    """A cancelled call, one out of time, one in flight at close, and those of a coalescer; then of a thread."""
    before, first, second = Counters.read(client_server.grpc_url, "slow"), make_gate(), make_gate()

    async def leave(url: str) -> None:
        async with (
            AsyncModel("slow", url=url, transport="grpc", coalesce=True) as merging,
            AsyncModel("slow", url=url, transport="grpc") as model,
        ):
            left = [asyncio.create_task(client.predict(first.rows())) for client in (model, merging, merging)]
            waits = asyncio.create_task(model.predict(first.rows()))
            assert await asyncio.to_thread(first.has)
            await ready()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            assert all(task.cancelled() for task in left)  # nobody waited for the answers
            with pytest.raises(TimedOutError):
                await model.predict(first.rows(), timeout_s=0.05)
            asyncio.get_running_loop().call_later(0.2, first.open)
        with pytest.raises(ClosedError):
            await waits

    with relay(client_server.grpc_url) as relayed:
        asyncio.run(leave(relayed.url))
        with Model("slow", url=relayed.url, transport="grpc") as model:
            with pytest.raises(TimedOutError):
                model.predict(second.rows(), timeout_s=0.1)
            thread = threading.Thread(target=model.predict, args=(second.rows(),))
            thread.start()
            assert second.has()
            threading.Timer(0.2, second.open).start()
            model.close()
            thread.join()
        assert all_ended(relayed)
        assert relayed.frames(RST_STREAM) == 0
        # The opening calls have deadlines only where the caller gave one.
        assert not any(b"grpc-timeout" in stream for stream in relayed.sent)
    assert counted(client_server, "slow", before, rows=7).failed_requests == 0


@pytest.mark.server
def test_a_server_that_survives_cancellations_gets_them(
    client_server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients._grpc.SURVIVES", (2, 51))

    async def leave(url: str) -> None:
        async with AsyncModel("slow", url=url, transport="grpc") as model:
            task = asyncio.create_task(model.predict(gate.rows()))
            assert await asyncio.to_thread(gate.has)
            task.cancel()
            with pytest.raises(TimedOutError):
                await model.predict(0 * ONE, timeout_s=0.1)

    with relay(client_server.grpc_url) as relayed:
        asyncio.run(leave(relayed.url))
        assert all_ended(relayed)
        assert relayed.frames(RST_STREAM) >= 1
        assert any(b"grpc-timeout" in stream for stream in relayed.sent)
    assert client_server.running()


@pytest.mark.server
def test_the_end_of_a_loop_cancels_nothing(client_server: Server, gate: Gate) -> None:
    """A model that nobody closes, and a call of a task that the end of the loop cancels."""
    before = Counters.read(client_server.grpc_url, "narrow")

    async def forget(url: str) -> None:
        model = AsyncModel("narrow", url=url, transport="grpc")
        await model.__aenter__()
        task = asyncio.create_task(model.predict(gate.rows()))
        assert await asyncio.to_thread(gate.has)
        assert not task.done()

    with relay(client_server.grpc_url) as relayed:
        asyncio.run(forget(relayed.url))
        gate.open()
        counted(client_server, "narrow", before, rows=1)
        assert relayed.frames(RST_STREAM) == 0


@pytest.mark.server
@pytest.mark.parametrize("error", ["TimedOutError", "KeyboardInterrupt"])
def test_a_process_waits_for_the_answers_that_it_dropped(client_server: Server, gate: Gate, error: str) -> None:
    script = (
        "import numpy, sys; from clients import Model, TimedOutError\n"
        "url, number, error = sys.argv[1:]\n"
        "timeout_s = 0.1 if error == 'TimedOutError' else None\n"
        "with Model('slow', url=url, transport='grpc') as model:\n"
        "    try: model.predict(numpy.full((1, 1), int(number), numpy.float32), timeout_s=timeout_s)\n"
        f"    except {error}: print('late', flush=True)\n"
    )
    command = [sys.executable, "-c", script]
    before = Counters.read(client_server.grpc_url, "slow")
    with (
        relay(client_server.grpc_url) as relayed,
        subprocess.Popen(
            [*command, relayed.url, str(gate.number), error], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout
        assert gate.has()
        if error == "KeyboardInterrupt":
            process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"late\n"
        assert not relayed.ended
        gate.open()
        assert process.communicate(timeout=60) == (b"", b"")
        counted(client_server, "slow", before, rows=1)
        assert all_ended(relayed)
        assert relayed.frames(RST_STREAM) == 0
