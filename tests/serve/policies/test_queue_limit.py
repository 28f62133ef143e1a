"""Requests that wait too long are refused: on a real server, and in the arithmetic."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answers import Answers
from backend_inputs import refusals
from bench import Bench
from policy_models import rows_of, stand_in
from processes import wait_until
from scrapes import scrape

from serve.management.statistics import Counters
from serve.policies import queue_limit
from serve.policies.queue_limit import KEPT, KEY, LOOK_S, QueueLimit, address, limit


class Triton:
    """The part of Triton's module that the limit uses."""

    class TritonError:
        UNAVAILABLE = 14

        def __init__(self, text: str, code: int) -> None:
            self.text, self.code = text, code

    class InferenceResponse:
        def __init__(self, error: "Triton.TritonError") -> None:
            self.error = error


class Queue:
    """A model's queue under a limit, and the clock; a batch takes the time that the test sets.

    `waiting`: how many requests wait, None where there are no metrics.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waiting = 3600.0, 0
        monkeypatch.setattr("serve.policies.queue_limit.time.monotonic", lambda: self.now)

    def limited(self, limit_s: float = 10.0, instances: int = 1) -> "Queue":
        self.limit = QueueLimit(limit_s=limit_s, instances=instances, pending=lambda: self.waiting, triton=Triton)
        return self

    def learned(self, waiting: Any, *, batch_s: float, instances: int = 1) -> "Queue":
        """A limit that has learned that 8 requests take `batch_s` while others wait."""
        self.limited(instances=instances).waiting = 1
        for _ in range(queue_limit.LEAST + 2):
            assert self.run(8, batch_s)
        self.waiting = waiting
        self.now += LOOK_S
        return self

    def run(self, count: int, seconds: float) -> bool:
        """Offer a batch that takes that time; returns whether it ran, and if not, all requests are left."""
        left: list[int] = []

        def answers(requests: Any) -> list[Any]:
            self.now += seconds
            return [f"answer to {request}" for request in requests]

        ran = isinstance(self.limit.apply(range(count), answers, left.extend)[0], str)
        assert left == ([] if ran else [*range(count)])
        return ran


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(monkeypatch)


@pytest.mark.parametrize(("waiting", "instances", "refused"), [(106, 1, 0), (108, 1, 1), (116, 1, 2), (212, 2, 0)])
def test_requests_that_cannot_run_in_time_are_refused_oldest_first(
    queue: Queue, waiting: int, instances: int, refused: int
) -> None:
    """Batches of 8 take 0.525 s: in 75 % of 10 s, without the current batch, 106 requests are answered."""
    queue.learned(waiting, batch_s=0.525, instances=instances)
    assert int((KEPT * 10 - 0.525) / 0.525 * 8) == 106
    assert [queue.run(8, 0.525) for _ in range(refused + 1)] == [False] * refused + [True]


def test_a_burst_at_an_idle_model_is_answered(queue: Queue) -> None:
    """The first request runs alone because no other waits, which says nothing about batches of 8."""
    queue.limited(2.0).waiting = 29
    for count in (1, 1, 8, 8, 8, 4):
        assert queue.run(count, 0.3)
        queue.waiting -= count


def test_batches_of_few_requests_with_many_rows_are_taken_together(queue: Queue) -> None:
    """One request in ten has 8 rows and runs nearly alone: 47 requests take 0.24 s on the average."""
    queue.limited(2.0).waiting = 200
    for count in (8, 8, 1, 8, 8, 1, 8, 5) * 5:
        assert queue.run(count, 0.03)
        queue.waiting = max(1, queue.waiting - 1)


def test_an_excess_that_is_gone_refuses_no_request(queue: Queue) -> None:
    """After clients gave up or another instance took the queue, later requests are not refused."""
    assert not queue.learned(200, batch_s=0.7).run(8, 0.7)
    queue.waiting = 0
    queue.now += LOOK_S
    assert queue.run(8, 0.7)


def test_one_batch_of_a_slow_model_may_wait(queue: Queue) -> None:
    assert queue.learned(8, batch_s=60.0).run(8, 60.0)
    assert not queue.learned(9, batch_s=60.0).run(8, 60.0)


def test_without_metrics_nothing_is_refused(queue: Queue) -> None:
    assert queue.learned(None, batch_s=0.7).run(8, 0.7)


def test_each_refusal_is_an_object_of_its_own(queue: Queue) -> None:
    """tritonserver crashes if it gets the same response twice."""
    responses = queue.learned(10**6, batch_s=0.7).limit.apply(range(8), list)
    assert len({id(response) for response in responses}) == 8
    assert {response.error.code for response in responses} == {Triton.TritonError.UNAVAILABLE}


def test_the_address_of_the_metrics_is_read_from_the_command_line() -> None:
    assert address([]) == ("127.0.0.1", 8002)
    assert address(["--metrics-port=9", "--http-address", "10.0.0.1"]) == ("10.0.0.1", 9)
    assert address(["--metrics-port", "9", "--metrics-address=0.0.0.0"]) == ("127.0.0.1", 9)
    assert address(["--http-address=ipv6:::1"]) == ("::1", 8002)


def test_a_limit_is_a_number_above_0(golden: Callable[..., None]) -> None:
    assert limit("m", "2000") == 2000
    golden("queue_limit", refusals(limit, {repr(text): ("m", text) for text in ("soon", "0", "-1", "nan", "inf", "")}))


@pytest.mark.server
def test_an_overload_ends_in_answers_and_refusals(bench: Bench, tmp_path: Path) -> None:
    """Eight requests take 200 ms at least, so of 400 at once two seconds are enough for 80 at most."""
    model = stand_in(tmp_path, "overloaded", fixed_ms="160", row_ms="0.625", queue_limit_ms="2000")
    with bench.serving((model,), tmp_path) as server, Answers(server.grpc_url, model) as sending:
        for number in range(400):
            sending.send({"x": rows_of(number, rows=8)})
        answers = sending.all()
        refused = [answer for answer in answers if isinstance(answer, str) and f"UNAVAILABLE] {KEY}: refused" in answer]
        right = [
            answer
            for number, answer in enumerate(answers)
            if not isinstance(answer, str) and (answer["y"] == number).all()
        ]

        def total(name: str) -> float:
            page = scrape(server.metrics_url)
            return sum(count for (each, labels), count in page.items() if each == name and ("model", model) in labels)

        # Refused by the model itself, so the server's statistics have all of them.
        assert wait_until(lambda: Counters.read(server.grpc_url, model).requests == 400, seconds=20)
        assert wait_until(lambda: total("queue_limit_refused_total") == len(refused), seconds=20)
        assert wait_until(lambda: total(queue_limit.GAUGE) == 0, seconds=20)
        assert Counters.read(server.grpc_url, model).failed_requests == 0
    assert len(right) + len(refused) == 400
    # Those that can be answered in time, the first batches, from which the limit learns, and what comes meanwhile.
    assert 0 < len(right) < 200
