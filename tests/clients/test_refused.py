"""Requests that a batch policy refuses on a real server: an error of their own, and a fleet that goes on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bench import Bench
from client_calls import address
from policy_models import stand_in

from clients import AsyncModel, Model, RejectedError
from clients.transport import Transport
from perf.load import __main__ as fleet
from serve.launcher import Server

pytestmark = pytest.mark.server
REFUSED = "batch_policy deadline: refused after"
# 20 + 3.6 b ms: five rows are in time, 64 take 250 ms.
SLOW_ROWS = {"row_ms": "3.6", "batch_policy": "deadline", "slo_ms": "40"}


@pytest.fixture(scope="module")
def refusing(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("refusing")
    names = [stand_in(repository, name, **SLOW_ROWS) for name in ("untaught", "loaded")]
    with bench.serving(names, repository) as running:
        yield running


@pytest.mark.parametrize("transport", ["grpc", "http", "shared_memory"])
def test_a_refusal_is_no_dead_server(refusing: Server, transport: Transport) -> None:
    url = address(refusing, transport)
    row, at_once = np.ones((1, 4), np.float32), {"timeout": 1}
    with Model("untaught", url=url, transport=transport) as model, pytest.raises(RejectedError, match=REFUSED):
        model.predict(row, parameters=at_once)

    async def ask() -> None:
        async with AsyncModel("untaught", url=url, transport=transport) as model:
            await model.predict(row, parameters=at_once)

    with pytest.raises(RejectedError, match=REFUSED):
        asyncio.run(ask())


def test_a_fleet_counts_refusals_and_goes_on(refusing: Server, tmp_path: Path) -> None:
    arguments = ["loaded", "--url", refusing.grpc_url, "--workers", "1", "--in-flight", "16", "--requests", "60"]
    assert fleet.main([*arguments, "--p99-ms", "40", "--results", str(tmp_path)]) == 1
    record = json.loads(next(tmp_path.glob("*.json")).read_text())
    outcome = record["outcome"]
    assert outcome["failed"] > 0
    assert outcome["right"] + outcome["failed"] == 60
    ((error, count),) = record["errors"].items()
    assert "batch_policy deadline: refused within 40.0 ms" in error
    assert count == outcome["failed"]
