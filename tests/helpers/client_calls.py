"""A server's address for a transport, and the regions of shared memory that it knows."""

from clients import Tls
from clients.connection import BlockingConnection
from clients.endpoint import Endpoint
from clients.steps import Step
from clients.transport import Transport
from serve.launcher import Server

TRANSPORTS: tuple[Transport, ...] = ("auto", "shared_memory", "grpc", "http")


def address(server: Server, transport: str) -> str:
    """host:port of the endpoint that the transport needs."""
    return server.http_url if transport == "http" else server.grpc_url


def registered(url: str, tls: Tls | None = None, headers: dict[str, str] | None = None) -> list[str]:
    """The names of the regions of shared memory that the server at a gRPC address knows."""
    connection = BlockingConnection(Endpoint.of(url, tls=tls, headers=headers))
    try:
        return sorted(connection.call(Step("SystemSharedMemoryStatus", b""), "").regions)
    finally:
        connection.close()
