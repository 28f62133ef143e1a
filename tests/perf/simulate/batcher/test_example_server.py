"""The tutorial's five requests A to E on a real server: in each case the same batches, in the same order.

A (4 rows) and C (2) are sent at 0, B (2) at X/3, D (6) and E (2) at 2X/3. TRITONSERVER_DELAY_SCHEDULER lets the batcher
begin when A and C are both there; else A alone might win the idle instance.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import pytest
from sleepers import PLAIN, Ran, send, sleeper

from perf.simulate.batcher.request import MS, Request
from serve.launcher import Server, Settings, launch
from tests.perf.simulate.batcher.test_example import NAMES, REQUESTS, X, run

X_MS = 600


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell of the table: instances, and the delay in multiples of X (None: no dynamic batching)."""

    instances: int
    delay: Fraction | None

    @property
    def config(self) -> str:
        batching = ""
        if self.delay is not None:
            batching = f"dynamic_batching {{ max_queue_delay_microseconds: {round(self.delay * X_MS * 1000)} }}"
        tensor = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]'
        return f"max_batch_size: 8 {batching} instance_group [ {{ count: {self.instances} }} ] {tensor}"


DELAYS = {"alone": None, "no_delay": Fraction(0), "short_delay": Fraction(1, 6), "long_delay": Fraction(1, 2)}
CASES = {f"{name}_{k}": Case(instances=k, delay=delay) for k in (1, 2) for name, delay in DELAYS.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """What ran together in each case, on one real server with a model for each; the cases run side by side."""
    folder = tmp_path_factory.mktemp("example")
    for name, case in CASES.items():
        sleeper(folder, name, case.config, fixed_ms=X_MS, row_ms=0)
    requests = [
        Request(number=number, at=round(at * X_MS * MS), rows=rows, shapes={"X": (1,)})
        for number, (at, rows) in enumerate(REQUESTS, 1)
    ]

    async def all_cases(server: Server) -> list[Ran]:
        return await asyncio.gather(*(send(server.grpc_url, name, requests) for name in CASES))

    settings = Settings(
        models=tuple(CASES), repository=folder, environment={"TRITONSERVER_DELAY_SCHEDULER": "2"}, arguments=PLAIN
    )
    with launch(settings) as server:
        return dict(zip(CASES, asyncio.run(all_cases(server)), strict=True))


@pytest.mark.server
@pytest.mark.parametrize("name", CASES)
def test_the_server_forms_the_batches_of_the_table(served: dict[str, Ran], name: str) -> None:
    case, ran = CASES[name], served[name]
    expected = run(instances=case.instances, delay=(case.delay or Fraction(0)) * X, dynamic=case.delay is not None)
    ran_names = [frozenset(NAMES[number - 1] for number in numbers) for numbers in ran.executions]
    names = [frozenset(NAMES[request.number] for request in execution.requests) for execution in expected.executions]
    starts = [execution.start for execution in expected.executions]
    # Executions that start at one time, on two instances, are in no order.
    assert Counter(zip(starts, ran_names, strict=True)) == Counter(zip(starts, names, strict=True))
    assert not ran.errors
