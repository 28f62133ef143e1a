"""The load generator behind a proxy: the counters of several servers are left out, those of one are exact."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import Bench
from doors import SIMULATED, door, endpoints, opened

from clients import Model
from perf.load import __main__ as program
from serve.launcher import Server

pytestmark = pytest.mark.server


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


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Server]:
    """A second server."""
    bench = Bench(folder=tmp_path / "other")
    with bench.serving((SIMULATED,)) as running:
        yield running
    bench.close()


def test_counters_are_those_of_one_server(
    server: Server, other: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = loaded([other], tmp_path / "one")
    capsys.readouterr()
    # One of the two has counted more.
    with Model(SIMULATED, url=other.grpc_url, transport="grpc") as model:
        model.predict(np.zeros((1, 1, 32, 100), np.float32))
    several = loaded([server, other], tmp_path / "several")
    assert one["uncounted"] == ""
    assert (one["counted"]["requests"], one["counted"]["rows"]) == (60, 60)
    assert "they fell between two readings, so several servers answer there" in several["uncounted"]
    assert (several["counted"]["requests"], several["counted"]["batches"]) == (0, {})
    assert [part["name"] for part in several["stages"]["parts"]] == ["client write", "network and server", "copy back"]
    assert "the server's counters are left out. 127.0.0.1:" in capsys.readouterr().out
