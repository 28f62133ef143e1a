"""Real replicas that the tests of the front door share."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from doors import RANKER, SIMULATED, start

from serve.front.checks import KINDS, Kind
from serve.launcher import Server


@pytest.fixture(scope="package", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each proxy in turn."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="package")
def replicas(ranker: Path) -> Iterator[Sequence[Server]]:
    """Three replicas of SIMULATED and one of RANKER; no test ends one of them."""
    assert ranker.is_file()
    with contextlib.ExitStack() as stack:
        servers = start(stack, SIMULATED, SIMULATED, SIMULATED, RANKER)
        yield servers
        assert all(server.running() for server in servers)
