"""The simulated batcher against the real one: the same requests run together, case by case, and by hand.

TRITONSERVER_DELAY_SCHEDULER holds each batcher until 24 requests wait, so what runs together is not a matter of timing.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from google.protobuf import text_format
from sleepers import PLAIN, Ran, send, sleeper
from streams import counted as read_counters
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.payload import ClosingRule
from perf.simulate.batcher.request import MS, Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate
from serve.launcher import Server, Settings, launch

HELD = 24


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration and its requests; `sizes` are the executions by rows as worked out by hand."""

    config: str
    requests: list[Request]
    sizes: dict[int, int]
    rules: set[ClosingRule]
    refused: int = 0
    execution_ms: float = 10
    hold: int = field(default=HELD)


def tensor(dims: str, extra: str = "", *, name: str = "X") -> str:
    return f'input [ {{ name: "{name}" data_type: TYPE_INT32 dims: [ {dims} ] {extra} }} ]\n'


def requests(
    count: int,
    *,
    rows: list[int] = [1],  # noqa: B006 - never changed
    lengths: list[int] = [4],  # noqa: B006
    names: list[str] = ["X"],  # noqa: B006
    priorities: list[int] = [0],  # noqa: B006
    late: dict[int, int] | None = None,
) -> list[Request]:
    """Requests 1 to `count`, with these values in turn; `late` maps a number to its arrival time in milliseconds."""
    return [
        Request(
            number=n + 1,
            at=(late or {}).get(n + 1, 0) * MS,
            rows=rows[n % len(rows)],
            shapes={name: (lengths[n % len(lengths)],) for name in names[n % len(names)]},
            priority=priorities[n % len(priorities)],
        )
        for n in range(count)
    ]


ONE = "instance_group [ { count: 1 } ]\n"
VARIABLE, FIXED = tensor("-1") + ONE, tensor("4") + ONE
CASES = {
    "lengths_20_30_40": Case(
        config=VARIABLE + "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 500000 }",
        requests=requests(24, lengths=[20, 30, 40]),
        sizes={1: 24},
        rules={ClosingRule.SHAPE, ClosingRule.DELAY},
    ),
    "lengths_20_30_40_ragged": Case(
        config=tensor("-1", "allow_ragged_batch: true")
        + ONE
        + "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 500000 }",
        requests=requests(24, lengths=[20, 30, 40]),
        sizes={16: 1, 8: 1},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.DELAY},
    ),
    "runs_of_equal_shape": Case(
        config=VARIABLE + "max_batch_size: 16 dynamic_batching { }",
        requests=requests(24, lengths=[20, 20, 30, 30, 30, 40]),
        sizes={2: 4, 3: 4, 1: 4},
        rules={ClosingRule.SHAPE, ClosingRule.NOTHING_WAITED},
    ),
    "two_inputs_one_of_them_ragged": Case(
        config=tensor("-1", "allow_ragged_batch: true", name="A") + VARIABLE + "max_batch_size: 8 dynamic_batching { }",
        requests=requests(24, lengths=[20, 20, 20, 30], names=["AX"]),
        sizes={3: 6, 1: 6},
        rules={ClosingRule.SHAPE, ClosingRule.NOTHING_WAITED},
    ),
    "preferred_size_is_a_cap": Case(
        config=FIXED + "max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 4 ] }",
        requests=requests(24),
        sizes={4: 6},
        rules={ClosingRule.PREFERRED},
    ),
    "largest_preferred_size_wins": Case(
        config=FIXED + "max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 4, 10 ] }",
        requests=requests(24),
        sizes={10: 2, 4: 1},
        rules={ClosingRule.PREFERRED},
    ),
    "rows_3_of_8": Case(
        config=FIXED + "max_batch_size: 8 dynamic_batching { }",
        requests=requests(24, rows=[3]),
        sizes={6: 12},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.NOTHING_WAITED},
    ),
    "rows_that_do_not_fit_together": Case(
        config=FIXED + "max_batch_size: 8 dynamic_batching { }",
        requests=requests(24, rows=[7, 2]),
        sizes={7: 12, 2: 12},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.NOTHING_WAITED},
    ),
    "optional_inputs": Case(
        config=tensor("4", name="Y") + tensor("4", "optional: true") + ONE + "max_batch_size: 8 dynamic_batching { }",
        requests=requests(24, names=["XY", "XY", "Y", "Y"]),
        sizes={2: 12},
        rules={ClosingRule.INPUTS, ClosingRule.NOTHING_WAITED},
    ),
    "priority_levels_share_a_batch": Case(
        config=FIXED + "max_batch_size: 16 dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
        requests=requests(24, priorities=[0, 1]),
        sizes={16: 1, 8: 1},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.NOTHING_WAITED},
    ),
    "late_requests_are_rejected": Case(
        config=FIXED
        + "max_batch_size: 8 dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000000 } }",
        requests=requests(24),
        sizes={8: 1},
        rules={ClosingRule.MAX_BATCH_SIZE},
        refused=16,
        execution_ms=2000,
    ),
    "late_requests_are_delayed": Case(
        config=FIXED
        + "max_batch_size: 8 dynamic_batching { priority_levels: 1 default_priority_level: 1 "
        + "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 200000 } }",
        requests=requests(26, late={25: 400, 26: 400}),
        sizes={8: 3, 2: 1},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.NOTHING_WAITED},
        execution_ms=700,
    ),
    "the_queue_is_full": Case(
        config=FIXED + "max_batch_size: 16 dynamic_batching { default_queue_policy { max_queue_size: 24 } }",
        requests=requests(24),
        sizes={16: 1, 8: 1},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.NOTHING_WAITED},
    ),
    "delay_is_over": Case(
        config=FIXED + "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 300000 }",
        requests=requests(30, late={29: 500, 30: 500}),
        sizes={16: 1, 12: 1, 2: 1},
        rules={ClosingRule.MAX_BATCH_SIZE, ClosingRule.DELAY},
    ),
    "two_instances": Case(
        config=tensor("4") + "instance_group [ { count: 2 } ]\nmax_batch_size: 8 dynamic_batching { }",
        requests=requests(24),
        sizes={8: 3},
        rules={ClosingRule.MAX_BATCH_SIZE},
    ),
    "a_busy_instance_lets_the_batch_grow": Case(
        config=FIXED + "max_batch_size: 64 dynamic_batching { }",
        requests=requests(30, late={25: 300, 26: 450, 27: 600, 28: 2100, 29: 2400, 30: 2550}),
        sizes={24: 1, 3: 2},
        rules={ClosingRule.NOTHING_WAITED},
        execution_ms=1500,
    ),
    "no_dynamic_batching": Case(
        config=FIXED + "max_batch_size: 16",
        requests=requests(24, rows=[1, 2]),
        sizes={1: 12, 2: 12},
        rules={ClosingRule.NOT_DYNAMIC},
    ),
    "max_batch_size_1": Case(
        config=FIXED + "max_batch_size: 1 dynamic_batching { max_queue_delay_microseconds: 500000 }",
        requests=requests(24),
        sizes={1: 24},
        rules={ClosingRule.MAX_BATCH_SIZE},
    ),
}

# Requests that come later meet a server that is as far as it is: only the simulation is asked for those.
EXACT = [name for name, case in CASES.items() if not any(request.at for request in case.requests)]


def replay(name: str) -> SimulationResult:
    case = CASES[name]
    rules = Rules.of(text_format.Parse(case.config, ModelConfig()), hold=case.hold)
    return simulate(rules, lambda rows: int(case.execution_ms * MS), Arrivals(case.requests))


@pytest.mark.parametrize("name", CASES)
def test_the_simulation_gives_what_the_rules_say(name: str) -> None:
    case, simulation = CASES[name], replay(name)
    assert simulation.sizes == dict(sorted(case.sizes.items()))
    assert {execution.closing.rule for execution in simulation.executions} == case.rules
    assert sum(simulation.refused.values()) == case.refused
    assert not simulation.stuck


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, Ran]]]:
    """A server of its own, whose batchers wait for 24 requests, with a model for each case; they run side by side."""
    folder = tmp_path_factory.mktemp("served")
    for name in EXACT:
        sleeper(folder, name, CASES[name].config, fixed_ms=CASES[name].execution_ms, row_ms=0)
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(HELD)}
    settings = Settings(models=tuple(EXACT), repository=folder, environment=environment, arguments=PLAIN)

    async def sent(server: Server) -> list[Ran]:
        return await asyncio.gather(*(send(server.grpc_url, name, CASES[name].requests) for name in EXACT))

    with launch(settings) as server:
        yield server, dict(zip(EXACT, asyncio.run(sent(server)), strict=True))


@pytest.mark.server
@pytest.mark.parametrize("name", EXACT)
def test_the_server_does_what_the_simulation_says(served: tuple[Server, dict[str, Ran]], name: str) -> None:
    server, runs = served
    case, ran, simulation = CASES[name], runs[name], replay(name)
    counted = read_counters(server.grpc_url, name, executions=len(simulation.executions))
    assert counted.batches == simulation.sizes
    assert counted.executions == len(simulation.executions)
    assert counted.rows_per_execution == pytest.approx(simulation.rows_per_execution)
    # Not only as many, but the same requests together.
    together = [sorted(request.number for request in execution.requests) for execution in simulation.executions]
    assert sorted(ran.executions) == sorted(together)
    assert len(ran.errors) == case.refused == counted.failed_requests
    assert Tally(error in text for text in ran.errors for error in simulation.refused)[True] == case.refused
