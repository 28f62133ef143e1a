"""The batches that instances take are those that Triton's batcher forms, as its simulation has them."""

import threading
import time
from collections.abc import Sequence

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.request import Request as Simulated
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate
from serve.inprocess.batches import Batches
from serve.inprocess.request import Head, Refused, Request

X = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'


def configuration(text: str) -> ModelConfig:
    return text_format.Parse(f"{X}instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{text}", ModelConfig())


def request(rows: int = 1, length: int = 1, priority: int = 0, timeout_us: int = 0) -> Request:
    head = Head(
        id="",
        names=("x",),
        kinds=("FP32",),
        shapes=((rows, length),),
        rows=rows,
        key=length,
        priority=priority,
        timeout_us=timeout_us,
        parameters="{}",
        outputs=frozenset(),
    )
    return Request(head, (), lambda requests: None)


def batches(config: ModelConfig, requests: Sequence[Request]) -> list[list[int]]:
    """The batches of requests that all wait, by the index of each request."""
    queue = Batches(config)
    assert all(map(queue.put, requests))
    found: list[list[int]] = []
    while sum(len(batch) for batch in found) < len(requests):
        taken = queue.take()
        assert taken is not None
        found.append([requests.index(one) for one in taken])
    return found


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(0, 3)), min_size=1, max_size=20),
    st.integers(4, 9),
    st.sets(st.integers(1, 4), max_size=2),
    st.sampled_from([0, 30_000]),
    st.sampled_from([0, 3]),
)
def test_waiting_requests_form_the_batches_of_the_simulation(
    made: list[tuple[int, int, int]], most: int, preferred: set[int], delay_us: int, levels: int
) -> None:
    # With a delay, a batch of a preferred size grows on while the instance wakes up, so chance decides.
    sizes = [most] if delay_us else sorted(preferred) or [most]
    priorities = f"priority_levels: {levels} default_priority_level: 2" if levels else ""
    config = configuration(
        f"max_batch_size: {most} dynamic_batching {{ preferred_batch_size: {sizes} "
        f"max_queue_delay_microseconds: {delay_us} {priorities} }}"
    )
    rules = Rules.of(config, hold=len(made))
    source = Arrivals(
        [
            Simulated(number=number, at=0, rows=rows, shapes={"x": (length,)}, priority=priority)
            for number, (rows, length, priority) in enumerate(made)
        ]
    )
    result = simulate(rules, lambda rows: 1, source)
    expected = [[one.number for one in execution.requests] for execution in result.executions]
    assert batches(config, [request(*one) for one in made]) == expected


def test_without_dynamic_batching_each_request_runs_alone() -> None:
    assert batches(configuration("max_batch_size: 8"), [request() for _ in range(3)]) == [[0], [1], [2]]


def test_a_lone_request_waits_for_the_delay_and_a_full_batch_does_not() -> None:
    queue = Batches(configuration("max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 300000 }"))
    started = time.monotonic()
    queue.put(request())
    assert len(queue.take() or ()) == 1
    assert time.monotonic() - started >= 0.3
    started = time.monotonic()
    queue.put(request())
    threading.Timer(0.05, lambda: queue.put(request())).start()
    assert len(queue.take() or ()) == 2
    assert time.monotonic() - started < 0.25


def test_a_full_queue_refuses_and_a_closed_one_takes_nothing() -> None:
    config = configuration("max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 2 } }")
    queue, requests = Batches(config), [request() for _ in range(3)]
    assert queue.put(requests[0])
    assert queue.put(requests[1])
    with pytest.raises(Refused, match="Exceeds maximum queue size") as refused:
        queue.put(requests[2])
    assert refused.value.status == "UNAVAILABLE"
    assert queue.remove(requests[0])
    assert not queue.remove(requests[0])
    assert queue.close() == [requests[1]]
    assert not queue.put(requests[2])
    assert queue.take() is None


@pytest.mark.parametrize(
    ("policy", "timeout_us", "expected"),
    [
        ("", 500_000, None),
        ("default_timeout_microseconds: 2000000", 500_000, 2.0),
        ("default_timeout_microseconds: 2000000 allow_timeout_override: true", 500_000, 0.5),
        ("default_timeout_microseconds: 2000000 allow_timeout_override: true", 9_000_000, 2.0),
        ("allow_timeout_override: true", 500_000, None),
    ],
)
def test_a_shorter_timeout_of_the_request_counts_where_it_may(
    policy: str, timeout_us: int, expected: float | None
) -> None:
    queue = Batches(configuration(f"max_batch_size: 4 dynamic_batching {{ default_queue_policy {{ {policy} }} }}"))
    one = request(timeout_us=timeout_us)
    queue.put(one)
    assert one.expires == (None if expected is None else pytest.approx(one.arrived + expected))
