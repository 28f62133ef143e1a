"""Requests that wait too long are refused: on a real server at ten times its capacity, and in the arithmetic."""

import asyncio
import re
import shutil
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from sleepers import PLAIN

from clients import AsyncModel
from clients.errors import ClientError, RejectedError
from export.repository import config_file, model_folder, read_config
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from serve.policies import queue_limit
from serve.policies.queue_limit import KEPT, KEY, LOOK_S, QueueLimit, address, limit

MODEL = "simulated_accelerator"
# 8 rows in 200 ms.
FIXED_MS, ROW_MS, LARGEST = 160.0, 5.0, 8
CAPACITY_PER_S = LARGEST / ((FIXED_MS + ROW_MS * LARGEST) / 1e3)
TIMES, SECONDS = 10, 4.0


class Triton:
    """The part of Triton's module that the limit uses."""

    class TritonError:
        UNAVAILABLE = 14

        def __init__(self, text: str, code: int) -> None:
            self.text, self.code = text, code

    class InferenceResponse:
        def __init__(self, error: "Triton.TritonError") -> None:
            self.error = error


class Clock:
    """The clock of the limit; a batch takes the time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 3600.0
        monkeypatch.setattr("serve.policies.queue_limit.time.monotonic", lambda: self.now)

    def run(self, controller: QueueLimit, count: int, seconds: float) -> bool:
        """Offer a batch that takes that time; returns whether it ran."""

        def answers(requests: Any) -> list[Any]:
            self.now += seconds
            return [f"answer to {request}" for request in requests]

        return isinstance(controller.apply(range(count), answers)[0], str)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def made(waiting: list[int], *, limit_s: float = 10.0, instances: int = 1) -> QueueLimit:
    return QueueLimit(limit_s=limit_s, instances=instances, pending=lambda: waiting[0], triton=Triton)


def learned(clock: Clock, waiting: list[int], *, batch: int = 8, batch_s: float = 0.7, **options: Any) -> QueueLimit:
    """A limit that has learned that `batch` requests take `batch_s` while others wait."""
    controller = made(waiting, **options)
    after, waiting[0] = waiting[0], 1
    for _ in range(queue_limit.LEAST + 2):
        assert clock.run(controller, batch, batch_s)
    waiting[0] = after
    clock.now += LOOK_S
    return controller


@pytest.mark.parametrize(("waiting", "instances", "refused"), [(106, 1, 0), (108, 1, 1), (116, 1, 2), (212, 2, 0)])
def test_requests_that_cannot_run_in_time_are_refused_oldest_first(
    clock: Clock, waiting: int, instances: int, refused: int
) -> None:
    """Batches of 8 take 0.525 s: in 75 % of 10 s, without the current batch, 106 requests are answered."""
    controller = learned(clock, [waiting], batch_s=0.525, instances=instances)
    assert int((KEPT * 10 - 0.525) / 0.525 * 8) == 106
    ran = [clock.run(controller, 8, 0.525) for _ in range(refused + 1)]
    assert ran == [False] * refused + [True]


def test_a_burst_at_an_idle_model_is_answered(clock: Clock) -> None:
    """The first request runs alone because no other waits, which says nothing about batches of 8."""
    waiting = [29]
    controller = made(waiting, limit_s=2.0)
    for count in (1, 1, 8, 8, 8, 4):
        assert clock.run(controller, count, 0.3)
        waiting[0] -= count


def test_batches_of_few_requests_with_many_rows_are_taken_together(clock: Clock) -> None:
    """One request in ten has 8 rows and runs nearly alone: 47 requests take 0.24 s on the average."""
    waiting = [200]
    controller = made(waiting, limit_s=2.0)
    for _ in range(5):
        for count in (8, 8, 1, 8, 8, 1, 8, 5):
            assert clock.run(controller, count, 0.03)
            waiting[0] = max(1, waiting[0] - 1)


def test_a_batch_without_waiting_requests_is_not_learned_from(clock: Clock) -> None:
    waiting = [0]
    controller = made(waiting, limit_s=2.0)
    for _ in range(50):
        assert clock.run(controller, 1, 0.3)
    waiting[0] = 100
    assert clock.run(controller, 1, 0.3)


def test_an_excess_that_is_gone_refuses_no_request(clock: Clock) -> None:
    """After clients gave up or another instance took the queue, later requests are not refused."""
    waiting = [200]
    controller = learned(clock, waiting)
    assert not clock.run(controller, 8, 0.7)
    waiting[0] = 0
    clock.now += LOOK_S
    assert clock.run(controller, 8, 0.7)


def test_one_batch_of_a_slow_model_may_wait(clock: Clock) -> None:
    assert clock.run(learned(clock, [8], batch_s=60.0), 8, 60.0)
    assert not clock.run(learned(clock, [9], batch_s=60.0), 8, 60.0)


def test_without_metrics_nothing_is_refused(clock: Clock) -> None:
    controller = learned(clock, [10**6])
    controller._pending = lambda: None
    assert clock.run(controller, 8, 0.7)


def test_each_refusal_is_an_object_of_its_own(clock: Clock) -> None:
    """tritonserver crashes if it gets the same response twice."""
    responses = learned(clock, [10**6]).apply(range(8), list)
    assert len({id(response) for response in responses}) == 8
    assert {response.error.code for response in responses} == {Triton.TritonError.UNAVAILABLE}


def test_the_address_of_the_metrics_is_read_from_the_command_line() -> None:
    assert address([]) == ("127.0.0.1", 8002)
    assert address(["--metrics-port=9", "--http-address", "10.0.0.1"]) == ("10.0.0.1", 9)
    assert address(["--metrics-port", "9", "--metrics-address=0.0.0.0"]) == ("127.0.0.1", 9)
    assert address(["--http-address=ipv6:::1"]) == ("::1", 8002)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_limit_is_a_number_above_0(text: str) -> None:
    assert limit("m", "2000") == 2000
    with pytest.raises(ValueError, match=r"model 'm' has queue_limit_ms '.*', which is not a number above 0"):
        limit("m", text)


def slow(repository: Path) -> Path:
    """The shipped `dynamic` variant, with its limit, on a device that this machine's clients can overload."""
    source = model_folder(MODEL)
    shutil.copytree(source / "1", repository / MODEL / "1", ignore=shutil.ignore_patterns("__pycache__"))
    config = read_config(config_file(source, "dynamic"))
    config.parameters["fixed_ms"].string_value, config.parameters["row_ms"].string_value = f"{FIXED_MS}", f"{ROW_MS}"
    (repository / MODEL / "config.pbtxt").write_text(text_format.MessageToString(config))
    return repository


def gauge(server: Server, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
        values = re.findall(rf'^{name}{{[^}}]*model="{MODEL}"[^}}]*}} (\S+)$', answer.read().decode(), re.MULTILINE)
    return round(sum(map(float, values)))


async def overload(server: Server) -> tuple[Counter[str], int]:
    """Send ten times the capacity; returns outcomes by name, and the longest queue."""
    seen: Counter[str] = Counter()
    longest = 0
    rng = np.random.default_rng(0)
    due = np.cumsum(rng.exponential(1 / (TIMES * CAPACITY_PER_S), int(SECONDS * TIMES * CAPACITY_PER_S)))

    async def send(model: AsyncModel, number: int) -> None:
        value = number % 64 / 64
        try:
            answer = await model.predict(np.full((1, 1, 32, 100), value, dtype=np.float32), timeout_s=60.0)
            seen["right" if np.allclose(answer, value) else "wrong"] += 1
        except RejectedError:
            seen["refused"] += 1
        except ClientError as error:
            seen[f"{type(error).__name__}: {error}"] += 1

    async with AsyncModel(MODEL, url=server.grpc_url, transport="grpc") as model, asyncio.TaskGroup() as going:
        started, looked = time.monotonic(), 0.0
        for number, at in enumerate(due):
            await asyncio.sleep(max(0.0, started + at - time.monotonic()))
            going.create_task(send(model, number))
            if at - looked > 0.5:
                looked = at
                longest = max(longest, await asyncio.to_thread(gauge, server, queue_limit.GAUGE))
    return seen, longest


@pytest.mark.server
def test_ten_times_the_capacity_ends_in_answers_and_refusals(tmp_path: Path) -> None:
    with launch(Settings(models=(MODEL,), repository=slow(tmp_path), arguments=PLAIN)) as server:
        seen, longest = asyncio.run(overload(server))
        counted = Counters.read(server.grpc_url, MODEL)
        refused, left = gauge(server, "queue_limit_refused_total"), gauge(server, queue_limit.GAUGE)
    sent = int(SECONDS * TIMES * CAPACITY_PER_S)
    assert set(seen) == {"right", "refused"}
    assert seen.total() == sent
    # Refused by the model itself, so the server's statistics have all of them.
    assert (counted.requests, counted.failed_requests, refused, left) == (sent, 0, seen["refused"], 0)
    # All that can be answered within two seconds, and what comes between two looks and in an execution.
    limit_s = float(read_config(config_file(model_folder(MODEL), "dynamic")).parameters[KEY].string_value) / 1e3
    # On a busy machine two seconds may pass between two looks; without the limit nearly all of them would wait.
    assert longest < (limit_s + TIMES * 2.0) * CAPACITY_PER_S
