"""Real replicas that the tests of the front door share."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import certificates
import pytest
from doors import RANKER, SIMULATED, start

from serve.launcher import Server


@pytest.fixture(scope="package")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of certificates."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="package")
def replicas(ranker: Path) -> Iterator[Sequence[Server]]:
    """Three replicas of SIMULATED and one of RANKER; no test ends one of them."""
    assert ranker.is_file()
    with contextlib.ExitStack() as stack:
        servers = start(stack, SIMULATED, SIMULATED, SIMULATED, RANKER)
        yield servers
        assert all(server.running() for server in servers)
