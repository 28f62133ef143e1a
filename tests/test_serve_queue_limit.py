"""What waits too long is refused: on a real server under ten times its capacity, and the limit's own arithmetic."""

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

from clients import AsyncModel
from clients.counters import Counters
from clients.errors import ClientError, RejectedError
from export import queue_limit
from export.queue_limit import KEPT, KEY, LOOK_S, QueueLimit, address, limit
from export.repository import config_file, model_folder, read_config
from serve.launcher import Server, Settings, launch

MODEL = "simulated_accelerator"
# 8 rows in 200 ms.
FIXED_MS, ROW_MS, LARGEST = 160.0, 5.0, 8
CAPACITY_PER_S = LARGEST / ((FIXED_MS + ROW_MS * LARGEST) / 1e3)
TIMES, SECONDS = 10, 6.0
ENDED_S = 20.0


class Triton:
    """What the limit uses of Triton's module."""

    class TritonError:
        UNAVAILABLE = 14

        def __init__(self, text: str, code: int) -> None:
            self.text, self.code = text, code

    class InferenceResponse:
        def __init__(self, error: "Triton.TritonError") -> None:
            self.error = error


def made(waiting: int | None, *, limit_s: float = 10.0, instances: int = 1) -> QueueLimit:
    found = QueueLimit(limit_s=limit_s, instances=instances, pending=lambda: waiting, triton=Triton)
    found._looked_s = time.monotonic() - 3600
    return found


def answers(requests: Any) -> list[Any]:
    return [f"answer to {one}" for one in requests]


def test_of_a_size_that_never_ran_nothing_is_refused() -> None:
    assert made(10**6).apply([1, 2], answers) == ["answer to 1", "answer to 2"]


@pytest.mark.parametrize(("waiting", "instances", "refused"), [(78, 1, 0), (79, 1, 1), (87, 1, 2), (157, 2, 0)])
def test_what_cannot_run_in_time_is_refused_the_oldest_first(waiting: int, instances: int, refused: int) -> None:
    """Batches of 8 that take 0.7 s: 75 % of 10 s, less the batch at hand, are 9.7 batches or 77 requests."""
    one = made(waiting, instances=instances)
    one._seconds[8] = 0.7
    assert int((KEPT * 10 - 0.7) / 0.7 * 8) == 77
    said = [one.apply(range(8), answers)[0] for _ in range(refused + 1)]
    assert [isinstance(found, Triton.InferenceResponse) for found in said] == [True] * refused + [False]


def test_an_excess_that_is_gone_refuses_nobody() -> None:
    """Clients gave up, or another instance took the queue: what comes later is not refused for them."""
    waiting = [200]
    one = QueueLimit(limit_s=10.0, instances=1, pending=lambda: waiting[0], triton=Triton)
    one._seconds[8] = 0.7
    assert one.apply(range(8), answers) != answers(range(8))
    waiting[0] = 0
    one._looked_s -= LOOK_S
    assert one.apply(range(8), answers) == answers(range(8))


def test_one_batch_of_a_slow_model_may_wait() -> None:
    one = made(8)
    one._seconds[8] = 60.0
    assert one.apply(range(8), answers) == answers(range(8))


def test_without_metrics_nothing_is_refused() -> None:
    one = made(None)
    one._seconds[2] = 60.0
    assert one.apply([1, 2], answers) == answers([1, 2])


def test_each_refusal_is_an_object_of_its_own() -> None:
    """tritonserver ends with a crash when it is given the same response twice."""
    one = made(10**6)
    one._seconds[8] = 1.0
    said = one.apply(range(8), answers)
    assert len({id(found) for found in said}) == 8
    assert {found.error.code for found in said} == {Triton.TritonError.UNAVAILABLE}


def test_where_the_metrics_are() -> None:
    assert address([]) == ("127.0.0.1", 8002)
    assert address(["--metrics-port=9", "--http-address", "10.0.0.1"]) == ("10.0.0.1", 9)
    assert address(["--metrics-port", "9", "--metrics-address=0.0.0.0"]) == ("127.0.0.1", 9)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_limit_is_a_number_above_0(text: str) -> None:
    assert limit("m", "2000") == 2000
    with pytest.raises(ValueError, match=r"model 'm' has queue_limit_ms '.*', which is no number above 0"):
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
        found = re.findall(rf'^{name}{{[^}}]*model="{MODEL}"[^}}]*}} (\S+)$', answer.read().decode(), re.MULTILINE)
    return round(sum(map(float, found)))


async def overload(server: Server) -> tuple[Counter[str], int]:
    """Send ten times the capacity; outcomes by name, and the longest queue that was seen."""
    seen: Counter[str] = Counter()
    longest = 0
    rng = np.random.default_rng(0)
    due = np.cumsum(rng.exponential(1 / (TIMES * CAPACITY_PER_S), int(SECONDS * TIMES * CAPACITY_PER_S)))

    async def one(model: AsyncModel, number: int) -> None:
        value = number % 64 / 64
        try:
            found = await model.predict(np.full((1, 1, 32, 100), value, dtype=np.float32), timeout_s=60.0)
            seen["right" if np.allclose(found, value) else "wrong"] += 1
        except RejectedError:
            seen["refused"] += 1
        except ClientError as error:
            seen[f"{type(error).__name__}: {error}"] += 1

    async with AsyncModel(MODEL, url=server.grpc_url, transport="grpc") as model, asyncio.TaskGroup() as going:
        started, looked = time.monotonic(), 0.0
        for number, at in enumerate(due):
            await asyncio.sleep(max(0.0, started + at - time.monotonic()))
            going.create_task(one(model, number))
            if at - looked > 0.5:
                looked = at
                longest = max(longest, await asyncio.to_thread(gauge, server, queue_limit.GAUGE))
    return seen, longest


@pytest.mark.server
def test_ten_times_the_capacity_ends_in_answers_and_refusals(tmp_path: Path) -> None:
    with launch(Settings(models=(MODEL,), repository=slow(tmp_path))) as server:
        started = time.monotonic()
        seen, longest = asyncio.run(overload(server))
        ended_s = time.monotonic() - started
        counted = Counters.read(server.grpc_url, MODEL)
        refused, left = gauge(server, "queue_limit_refused_total"), gauge(server, queue_limit.GAUGE)
    sent = int(SECONDS * TIMES * CAPACITY_PER_S)
    assert set(seen) == {"right", "refused"}
    assert seen.total() == sent
    # Refused by the model itself, so the server's statistics have all of them.
    assert (counted.requests, counted.failed_requests, refused, left) == (sent, 0, seen["refused"], 0)
    # All that can be answered within two seconds, and what comes between two looks and in an execution.
    limit_s = float(read_config(config_file(model_folder(MODEL), "dynamic")).parameters[KEY].string_value) / 1e3
    assert longest < (limit_s + TIMES * 1.0) * CAPACITY_PER_S
    assert ended_s < ENDED_S
