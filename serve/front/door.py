"""What a front door is: its addresses, the replicas behind it, who may call, and what a request may be.

Envoy is configured from this description alone.
"""

from dataclasses import dataclass
from pathlib import Path

from serve.management import admin

# Of W3C's trace context.
TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A replica as the door sees it.

    is_draining: it gets no new requests; those in flight are answered.
    weight: its share of new requests, relative to the other endpoints of its pool. While the weights differ, Envoy
        sends requests in turn by them.
    """

    replica: str
    host: str
    http_port: int
    grpc_port: int
    is_draining: bool = False
    weight: int = 100


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the door counts for one replica since Envoy started: requests in flight, all, and failed ones."""

    in_flight: int
    requests: int
    failures: int


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Replicas that serve the same models.

    slowest_s: the longest time of an honest request; a try that takes longer goes to another replica.
    is_retried: whether a request may run twice (at least once); False for sequence models and for models that are not
        idempotent.
    most_in_flight: requests that the door lets in at a time, of each protocol; it answers more with UNAVAILABLE or
        503.
    """

    name: str
    models: tuple[str, ...]
    slowest_s: float
    is_retried: bool
    most_in_flight: int


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A client with its bearer token and its rate: `requests_per_s` on average, `burst` at once."""

    name: str
    token: str
    requests_per_s: float
    burst: int


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The files of the door's certificate and its key, both PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, kw_only=True)
class FrontDoor:
    """A front door on `http_port` and `grpc_port` of `host`.

    tenants: without any, everybody who reaches the ports may call. is_open: whether the door may listen beyond loopback
        without tenants or without TLS, as in a network of containers.
    passes_traces: whether a `traceparent` reaches the replicas without a tenant, too. A server that sends traces
        traces each request that has one, and before 2.58 it can die from that (serve/server_flags.py).
    largest_request_bytes: a larger request is refused. retry_buffer_bytes must be above it, or a retry fails.
    most_depth: the deepest nesting of a JSON request.
    idle_s: a connection without requests is closed after this time; headers_s, request_s: the longest time in which a
        client may send its headers, and its whole request.
    """

    host: str
    http_port: int
    grpc_port: int
    pools: tuple[Pool, ...]
    tenants: tuple[Tenant, ...] = ()
    tls: Tls | None = None
    is_open: bool = False
    passes_traces: bool = False
    largest_request_bytes: int = 16 << 20
    retry_buffer_bytes: int = 17 << 20
    most_depth: int = 64
    most_connections: int = 4096
    idle_s: float = 300.0
    headers_s: float = 10.0
    request_s: float = 60.0

    @property
    def address(self) -> str:
        """The IP address of `host`."""
        return "127.0.0.1" if self.host == "localhost" else self.host

    @property
    def removed_headers(self) -> tuple[str, ...]:
        """The headers that no replica gets: secrets, and those with which a stranger would have a request traced."""
        secrets = ("authorization", admin.HEADER)
        return secrets if self.tenants or self.passes_traces else (*secrets, *TRACE_HEADERS)
