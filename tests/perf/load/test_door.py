"""The load generator behind a proxy: the counters of several servers are left out, those of one are exact."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doors import SIMULATED, door, endpoints, opened, start

from clients import Model
from perf.load import __main__ as program
from perf.load.door import misfit
from serve.launcher import Server
from serve.management.statistics import Counters

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def servers() -> Iterator[Sequence[Server]]:
    """Two, of which one has counted more."""
    with contextlib.ExitStack() as stack:
        found = start(stack, SIMULATED, SIMULATED)
        with Model(SIMULATED, url=found[0].grpc_url, transport="grpc") as model:
            model.predict(np.zeros((1, 1, 32, 100), np.float32))
        yield found


def loaded(servers: Sequence[Server], folder: Path) -> dict[str, Any]:
    """The record of 60 requests through a door before these servers."""
    front = door(SIMULATED)
    with opened(front) as proxy:
        proxy.route({SIMULATED: endpoints(servers)})
        options = ["--url", f"127.0.0.1:{front.grpc_port}", "--workers", "2", "--requests", "60"]
        assert program.main([SIMULATED, *options, "--results", str(folder)]) == 0
    record: dict[str, Any] = json.loads(next(folder.glob("*.json")).read_text())
    assert (record["outcome"]["right"], record["faults"]) == (60, [])
    return record


def test_counters_of_several_servers_are_left_out(
    servers: Sequence[Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = loaded(servers, tmp_path)
    assert "they fell between two readings, so several servers answer there" in record["uncounted"]
    assert (record["counted"]["requests"], record["counted"]["batches"]) == (0, {})
    assert [part["name"] for part in record["stages"]["parts"]] == ["client write", "network and server", "copy back"]
    printed = capsys.readouterr().out
    assert "the server's counters are left out. 127.0.0.1:" in printed
    assert "rows in an execution" not in printed


def test_counters_of_one_server_behind_a_proxy_are_exact(servers: Sequence[Server], tmp_path: Path) -> None:
    record = loaded(servers[1:], tmp_path)
    assert record["uncounted"] == ""
    assert (record["counted"]["requests"], record["counted"]["rows"]) == (60, 60)


def test_counters_that_lack_most_requests_are_not_those_of_the_server(servers: Sequence[Server]) -> None:
    url = servers[1].grpc_url
    counted = Counters.read(url, SIMULATED)
    assert misfit(url, SIMULATED, counted, counted.requests) == ""
    assert "requests were answered and" in misfit(url, SIMULATED, counted, 3 * counted.requests + 3)
