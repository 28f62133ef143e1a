"""What a cluster says of itself: the answer to `status`."""

import msgspec

from serve.cluster.events import Event

VERSION = 1
# What a deployment without replicas means.
NOBODY = "its requests fail (503, UNAVAILABLE) until `scale` gives it one"


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the status."""


class Served(Frozen, frozen=True, kw_only=True):
    """What the server of a replica has counted for a model since it loaded it.

    requests: those that it answered. queue_ms, compute_ms: the mean time of such a request.
    """

    model: str
    requests: int
    failures: int
    rows_per_execution: float
    queue_ms: float
    compute_ms: float


class ReplicaStatus(Frozen, frozen=True, kw_only=True):
    """A replica.

    phase: starting, ready, unready (it does not say that it is ready), draining or stopping.
    pid: the process of the server's guard. server_pid: that of the tritonserver.
    in_flight, requests, failures: what the door counts for it.
    role: canary or control, "" of an ordinary replica.
    served: what its server counts, a value for each model; the command `status` asks it, and it is empty else.
    """

    name: str
    deployment: str
    node: str
    phase: str
    config_name: str | None
    models: tuple[str, ...]
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    pid: int
    server_pid: int = 0
    age_s: float
    in_flight: int
    requests: int
    failures: int
    role: str = ""
    served: tuple[Served, ...] = ()


class DeploymentStatus(Frozen, frozen=True, kw_only=True):
    """A deployment.

    desired: the replicas that it is to have. deaths: replicas that ended by themselves or hung. drained: those that
    left as they were told.
    gave_up: why no more replicas are started, "" if they are. updating: whether replicas are being replaced by those of
    another configuration. update: how the last update ended, "" without one.
    canary: the configuration of the canary, None without a canary. canary_share: of the requests, that each of the
    canary and its control gets. canary_failed: why the cluster itself ended the last canary, "" if it did not. The two
    are in none of the counts but `deaths`.
    """

    name: str
    models: tuple[str, ...]
    config_name: str | None
    desired: int
    ready: int
    deaths: int
    drained: int
    gave_up: str
    updating: bool
    update: str
    scales: bool
    canary: str | None = None
    canary_share: float = 0.0
    canary_failed: str = ""


class Status(Frozen, frozen=True, kw_only=True):
    """A cluster; `is_ready` once every deployment had its replicas."""

    version: int = VERSION
    name: str
    engine: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None
    is_ready: bool
    proxy_restarts: int
    deployments: tuple[DeploymentStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    events: tuple[Event, ...]
