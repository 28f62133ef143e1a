"""What starts and stops replicas: processes on this machine, or Ray on several.

An engine keeps no count of replicas and replaces nothing: the cluster decides, the engine does. No request passes
through it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from serve.launcher import Settings

# The variable of the GPUs that a server sees.
DEVICES = "CUDA_VISIBLE_DEVICES"


class Phase(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A replica to start: a tritonserver with these settings.

    name: the deployment's name and a number that no other replica of the cluster has had.
    cpus, gpus: what it takes of a node. nodes: those that it may run on; empty is any.
    """

    name: str
    deployment: str
    settings: Settings
    cpus: float = 1.0
    gpus: float = 0.0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """What the engine knows of a replica; the ports are 0 until it is ready.

    pid: the process of the server's guard on its node. server_pid: that of the tritonserver below it.
    problem: why it ended, "" if it was stopped; of one that is ready, why another should take its place, "" if none
        should.
    """

    phase: Phase
    node: str = ""
    host: str = ""
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    pid: int = 0
    server_pid: int = 0
    problem: str = ""


class Engine(Protocol):
    """Starts and stops replicas. No method blocks for longer than it takes to hand the work on, but `close`."""

    def check(self, replicas: Sequence[Replica]) -> None:
        """Raise `Mistake` if there is no room for these replicas beside those that run."""

    def start(self, replica: Replica) -> None:
        """Begin to start a replica; its state says when it is ready, or that it ended."""

    def states(self) -> Mapping[str, ReplicaState]:
        """The state of every replica that was started and not forgotten, by name."""

    def stop(self, name: str) -> None:
        """Begin to stop a replica; requests in flight are answered. Its state says when it has ended."""

    def forget(self, name: str, *, keeps_log: bool = False) -> None:
        """Drop the state of a replica that has ended; the log of one that died is kept, or with `keeps_log`."""

    def close(self) -> None:
        """Stop every replica and return when none is left."""
