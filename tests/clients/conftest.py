"""What the tests of clients share: a real server with their models, gates that hold these, and a server of gRPC."""

from collections.abc import Callable, Iterator

import client_models
import pytest
from client_calls import Gate
from grpc_server import GrpcServer, grpc_server
from server_processes import IMPATIENT
from sleepers import PLAIN

from serve.launcher import Server, Settings, launch


@pytest.fixture(scope="session")
def client_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real tritonserver with the models of client_models.py.

    It has models for the whole session, which `bench` loses when it crashes as it loads another one.
    """
    repository = client_models.build(tmp_path_factory.mktemp("client_models"))
    settings = Settings(models=client_models.NAMES, repository=repository, arguments=(*PLAIN, *IMPATIENT))
    with launch(settings) as running:
        yield running


@pytest.fixture
def make_gate(client_server: Server) -> Iterator[Callable[[], Gate]]:
    """Makes gates, which open at the end."""
    gates: list[Gate] = []

    def make() -> Gate:
        gates.append(Gate(client_server.settings.repository))
        return gates[-1]

    yield make
    for gate in gates:
        gate.open()


@pytest.fixture
def gate(make_gate: Callable[[], Gate]) -> Gate:
    return make_gate()


@pytest.fixture
def answering() -> Iterator[GrpcServer]:
    """A server of gRPC whose answers the test gives."""
    with grpc_server() as running:
        yield running
