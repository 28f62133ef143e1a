"""What a plan of a cluster says: its deployments, its front door and its limits.

The fields are the keys of PLAN.toml; plan_file.py reads one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from export.repository import REPOSITORY
from triton_batching.options import MOST_REPLICAS

NAME = r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$"
# Without a latency target of its own, a try that takes longer than this goes to another replica.
SLOWEST_MS = 10_000.0
# A try may take this many times the latency target, and never less than a second.
TARGETS, LEAST_SLOWEST_MS = 5.0, 1000.0

Name = Annotated[str, Meta(pattern=NAME, max_length=63)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Replicas = Annotated[int, Meta(ge=0, le=MOST_REPLICAS)]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
Milliseconds = Annotated[float, Meta(ge=0.1, le=1e9)]
# Envoy counts the bytes of a request in 32 bits.
Mebibytes = Annotated[float, Meta(gt=0.0, lt=4096.0)]
NotNegative = Annotated[float, Meta(ge=0.0, le=1e6)]
Count = Annotated[int, Meta(ge=1, le=1 << 24)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class ScalingTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment has as many replicas as its requests need, from `min` to `max` (see scaling.py).

    target_pending: the requests in flight at a replica that works at its capacity (`python -m perf.scale` finds it).
    steepness: requests in flight grow as the load to this power (`perf.scale` finds it, too).
    tolerance: a load this close to the target, as a share of it, changes nothing.
    down_after_s: the time for which fewer replicas must do before one goes.
    """

    min: Annotated[int, Meta(ge=1, le=MOST_REPLICAS)] = 1
    max: Annotated[int, Meta(ge=1, le=MOST_REPLICAS)]
    target_pending: Positive
    steepness: Annotated[float, Meta(ge=1.0, le=100.0)] = 1.0
    tolerance: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    down_after_s: NotNegative = 300.0


class Deployment(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models that each replica of this deployment serves.

    replicas: with `scaling`, those to start with, brought between its min and max.
    cpus, gpus: what a replica takes of its node; 0 is not counted.
    p99_ms: the latency target. slowest_ms: the longest time of an honest request (default: five targets, a second at
        least); a try that takes longer goes to another replica.
    idempotent: False if a request must not run twice. Models with sequences are never tried again.
    most_in_flight: the door answers more requests at a time with UNAVAILABLE or 503.
    arguments, environment: for each tritonserver. nodes: where replicas may run; empty is anywhere.
    """

    name: Name
    models: Annotated[tuple[str, ...], Meta(min_length=1)]
    config_name: str | None = None
    replicas: Replicas = 1
    cpus: NotNegative = 0.0
    gpus: NotNegative = 0.0
    p99_ms: Milliseconds | None = None
    slowest_ms: Milliseconds | None = None
    idempotent: bool = True
    most_in_flight: Count = 1024
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    nodes: tuple[str, ...] = ()
    start_timeout_s: Positive = 120.0
    scaling: ScalingTable | None = None

    @property
    def slowest_s(self) -> float:
        """The longest time of an honest request."""
        if self.slowest_ms is not None:
            return self.slowest_ms / 1e3
        return (SLOWEST_MS if self.p99_ms is None else max(TARGETS * self.p99_ms, LEAST_SLOWEST_MS)) / 1e3

    @property
    def most_replicas(self) -> int:
        """The replicas that the plan may ask for at a time."""
        return self.scaling.max if self.scaling else self.replicas


class Limits(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the door lets in, and how long the cluster waits.

    retry_buffer_mib: the buffer in which a request waits for a second try.
    drain_s: the longest time in which a replica that leaves answers its requests.
    hung_s: a replica that is not ready for that long is replaced.
    """

    largest_request_mib: Mebibytes = 16.0
    retry_buffer_mib: Mebibytes = 17.0
    most_depth: Annotated[int, Meta(ge=1, le=1000)] = 64
    most_connections: Count = 4096
    idle_s: Positive = 300.0
    headers_s: Positive = 10.0
    request_s: Positive = 60.0
    drain_s: Positive = 60.0
    hung_s: Annotated[float, Meta(ge=1.0, le=1e9)] = 30.0


class TlsFiles(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of the door's certificate and its key, both PEM."""

    certificate: Path
    key: Path


class TenantEntry(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client: the file with its bearer token, and its rate."""

    name: Name
    token_file: Path
    requests_per_s: Positive
    burst: Count


class Plan(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster.

    Ports of 0 are any free ones. metrics_host, metrics_port: of the cluster's own metrics, which everybody who reaches
        them can read; with -1 there are none.
    is_open: whether `host` may be beyond loopback without tenants and TLS.
    passes_traces: whether replicas get the `traceparent` of requests without a tenant, too.
    """

    deployment: Annotated[tuple[Deployment, ...], Meta(min_length=1)]
    host: str = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, Meta(ge=-1, le=65_535)] = 8002
    is_open: bool = False
    passes_traces: bool = False
    repository: Path = REPOSITORY
    limits: Limits = Limits()
    tls: TlsFiles | None = None
    tenant: tuple[TenantEntry, ...] = ()

    def find(self, name: str) -> Deployment | None:
        """The deployment with this name, or the only one that serves a model of this name."""
        named = [deployment for deployment in self.deployment if deployment.name == name]
        return next(iter(named or [deployment for deployment in self.deployment if name in deployment.models]), None)
