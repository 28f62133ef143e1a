"""Callers that leave do not end the server: nothing is cancelled on the wire before the version that survives it."""

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import wait_until
from relay import RST_STREAM, Relay, relay
from server_processes import tritonserver

from clients import AsyncModel, ClosedError, Model, TimedOutError
from clients.cancelling import survives
from serve.launcher import Server
from serve.management.statistics import Counters

ROOT = Path(__file__).parents[2]
ONE = np.ones((1, 1), np.float32)
LIMIT_S = 30.0


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.51.0", False),
        ("2.53.0", False),  # has #7840, and still the crash of issue 8034
        ("2.58.0", False),
        ("2.59.0", True),
        ("2.60.0dev", True),
        ("2.100.0", True),
        ("10.1", True),
        ("1.99.0", False),
        ("", False),
        ("v2.60", False),
    ],
)
def test_which_versions_survive_cancellations(version: str, expected: bool) -> None:
    assert survives(version) is expected


@pytest.mark.server
@pytest.mark.parametrize(("way", "calls"), [("cancelled", 8_000), ("deadline", 3_000), ("coalesced", 3_000)])
def test_callers_that_leave_do_not_end_the_server(client_server: Server, way: str, calls: int) -> None:
    """Eight tasks leave after 0 to 6 ms, two wait; every answer that comes is checked."""
    before, rng = tritonserver(client_server.pid), random.Random(7)
    counted: Counter[str] = Counter()
    began = time.monotonic()

    def continues() -> bool:
        return counted["sent"] < calls and time.monotonic() - began < LIMIT_S

    async def leaver(model: AsyncModel) -> None:
        while continues():
            counted["sent"] += 1
            array, expected = case(way, counted["sent"])
            soon = rng.uniform(0, 0.006)
            deadline = soon + 1e-6 if way == "deadline" else None
            task = asyncio.create_task(model.predict(array, timeout_s=deadline))
            if way != "deadline":
                await asyncio.sleep(soon)
                task.cancel()
            try:
                np.testing.assert_array_equal(await task, expected)
            except (asyncio.CancelledError, TimedOutError):
                counted["left"] += 1

    async def waiter(model: AsyncModel) -> None:
        while continues():
            array, expected = case(way, counted["sent"])
            np.testing.assert_array_equal(await model.predict(array), expected)
            counted["answered"] += 1

    async def concurrently() -> None:
        name = "picky" if way == "coalesced" else "unbatched"
        async with AsyncModel(name, url=client_server.grpc_url, transport="grpc", coalesce=way == "coalesced") as model:
            async with asyncio.TaskGroup() as tasks:
                for kind in [leaver] * 8 + [waiter] * 2:
                    tasks.create_task(kind(model))
            array, expected = case(way, 3)
            np.testing.assert_array_equal(await model.predict(array), expected)

    asyncio.run(concurrently())
    assert tritonserver(client_server.pid) == before
    assert counted["left"] > 100
    assert counted["answered"] > 100


def case(way: str, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    if way == "coalesced":
        array = np.full((1, 1), number % 97, np.float32)
        return array, np.sqrt(array)
    row = np.arange(3) + number
    return row, row[::-1]


@pytest.mark.server
def test_deadlines_of_blocking_calls_do_not_end_the_server(client_server: Server) -> None:
    before, ended, lock = tritonserver(client_server.pid), Counter[str](), threading.Lock()

    def caller(model: Model, number: int) -> None:
        rng = random.Random(number)
        for call in range(400):
            array = np.arange(3) + 1000 * number + call
            try:
                answer = model.predict(array, timeout_s=rng.uniform(1e-6, 0.006) if call % 2 else 30)
                np.testing.assert_array_equal(answer, array[::-1])
                end = "answered"
            except TimedOutError:
                end = "left"
            with lock:
                ended[end] += 1

    with Model("unbatched", url=client_server.grpc_url, transport="grpc") as model:
        threads = [threading.Thread(target=caller, args=(model, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert tritonserver(client_server.pid) == before
    assert ended.total() == 3200
    assert ended["left"] > 100
    assert ended["answered"] >= 1600


def cancel_late_and_close(url: str) -> None:
    """A cancelled call, one out of time, one in flight at close, and those of a coalescer; all of 0.3 s."""

    async def leave() -> None:
        async with (
            AsyncModel("slow", url=url, transport="grpc", coalesce=True) as merging,
            AsyncModel("slow", url=url, transport="grpc") as model,
        ):
            tasks = [asyncio.create_task(client.predict(0.3 * ONE)) for client in (model, model, merging, merging)]
            await asyncio.sleep(0.1)
            tasks[0].cancel()
            tasks[2].cancel()
            tasks[3].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            with pytest.raises(TimedOutError):
                await model.predict(0.3 * ONE, timeout_s=0.01)
            assert not tasks[1].done()  # nobody waited for the answer
        with pytest.raises(ClosedError):
            await tasks[1]

    asyncio.run(leave())
    with Model("slow", url=url, transport="grpc") as model:
        with pytest.raises(TimedOutError):
            model.predict(0.3 * ONE, timeout_s=0.1)
        thread = threading.Thread(target=model.predict, args=(0.3 * ONE,))
        thread.start()
        time.sleep(0.1)
        model.close()
        thread.join()


def all_ended(relayed: Relay, connections: int) -> bool:
    gc.collect()  # a call that was cancelled holds its connection until then
    return wait_until(lambda: len(relayed.ended) == len(relayed.sent) == connections, seconds=5)


@pytest.mark.server
def test_nothing_is_cancelled_on_the_wire(client_server: Server) -> None:
    before = Counters.read(client_server.grpc_url, "slow")
    with relay(client_server.grpc_url) as relayed:
        cancel_late_and_close(relayed.url)
        assert all_ended(relayed, 4)  # the blocking call that was left keeps its own
        assert relayed.frames(RST_STREAM) == 0
        # The opening calls have deadlines only where the caller gave one.
        assert not any(b"grpc-timeout" in stream for stream in relayed.sent)
    counted = Counters.read(client_server.grpc_url, "slow") - before
    assert (counted.rows, counted.failed_requests) == (7, 0)


@pytest.mark.server
def test_a_server_that_survives_cancellations_gets_them(client_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.cancelling.SURVIVES", (2, 51))

    async def leave(url: str) -> None:
        async with AsyncModel("slow", url=url, transport="grpc") as model:
            task = asyncio.create_task(model.predict(0.3 * ONE))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(TimedOutError):
                await model.predict(0 * ONE, timeout_s=0.1)

    with relay(client_server.grpc_url) as relayed:
        asyncio.run(leave(relayed.url))
        assert all_ended(relayed, 1)
        assert relayed.frames(RST_STREAM) >= 1
        assert any(b"grpc-timeout" in stream for stream in relayed.sent)
    assert client_server.running()


@pytest.mark.server
@pytest.mark.parametrize("loops", [1, 2])
def test_the_end_of_a_loop_cancels_nothing(client_server: Server, loops: int) -> None:
    """A model that nobody closes, and a call of a task that the end of the loop cancels."""

    async def forget(url: str) -> None:
        model = AsyncModel("slow", url=url, transport="grpc")
        await model.__aenter__()
        task = asyncio.create_task(model.predict(0.3 * ONE))
        await asyncio.sleep(0.1)
        assert not task.done()

    with relay(client_server.grpc_url) as relayed:
        for _ in range(loops):
            asyncio.run(forget(relayed.url))
        before = Counters.read(client_server.grpc_url, "slow")
        time.sleep(0.1)
        assert relayed.frames(RST_STREAM) == 0
        assert relayed.ended == []
        assert wait_until(lambda: (Counters.read(client_server.grpc_url, "slow") - before).rows >= 1, seconds=5)


@pytest.mark.server
@pytest.mark.parametrize(
    ("before", "timeout_s", "error"),
    [
        ("pass", 0.1, "TimedOutError"),
        ("threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()", 5, "KeyboardInterrupt"),
    ],
)
def test_a_process_waits_for_the_answers_that_it_dropped(
    client_server: Server, before: str, timeout_s: float, error: str
) -> None:
    script = (
        "import numpy, os, signal, sys, threading; from clients import Model, TimedOutError\n"
        "with Model('slow', url=sys.argv[1], transport='grpc') as model:\n"
        f"    {before}\n"
        f"    try: model.predict(numpy.full((1, 1), 0.5, numpy.float32), timeout_s={timeout_s})\n"
        f"    except {error}: print('late')\n"
        "print(model._connection.dropped, 'left')"
    )
    with relay(client_server.grpc_url) as relayed:
        ended = subprocess.run(
            [sys.executable, "-c", script, relayed.url], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (ended.stdout, ended.stderr) == ("late\n0 left\n", "")
        assert all_ended(relayed, 1)
        assert relayed.frames(RST_STREAM) == 0


@pytest.mark.server
def test_calls_whose_callers_have_left_are_bounded(client_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.cancelling.MAX_DROPPED", 2)
    before = Counters.read(client_server.grpc_url, "slow")
    with Model("slow", url=client_server.grpc_url, transport="grpc") as model:
        for _ in range(2):
            with pytest.raises(TimedOutError):
                model.predict(0.5 * ONE, timeout_s=0.05)
        with pytest.raises(TimedOutError):
            model.predict(0 * ONE, timeout_s=0.05)  # waits for the other two and is never sent
        assert model.predict(0 * ONE).item() > 0
    assert wait_until(lambda: (Counters.read(client_server.grpc_url, "slow") - before).rows >= 3, seconds=5)
    assert (Counters.read(client_server.grpc_url, "slow") - before).rows == 3
