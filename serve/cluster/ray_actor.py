"""A replica on a node of Ray: the class whose objects live in Ray's processes, one for each replica."""

import os
import signal
import socket
import threading
from dataclasses import dataclass, replace

import ray

from serve import failure_log, guard_process
from serve.cluster.engine import DEVICES
from serve.cluster.ray_nodes import own_node
from serve.launcher import Server, Settings, launch
from serve.revival import reviving
from triton_batching.terminal import Failure, Mistake

POLL_S = 0.05
# Methods that run at the same time: place, wait_until_ready, run and stop.
THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the actor runs: the node's address for clients, and the machine's name."""

    host: str
    machine: str


@dataclass(frozen=True, kw_only=True)
class Ports:
    """A ready server: its ports, the process of its guard, and its own."""

    http: int
    grpc: int
    metrics: int
    pid: int
    server_pid: int


class _Stopped(Exception):  # noqa: N818 - no error
    """The start was called off."""


class ReplicaActor:
    """One tritonserver, started by `run`. If this process dies, the server's guard ends the server."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._node = settings, own_node()
        self._ports: Ports | None = None
        self._is_decided, self._stopping = threading.Event(), threading.Event()

    def place(self) -> Place:
        """Where this actor runs; the answer comes as soon as it does."""
        return Place(host=self._node.address, machine=socket.gethostname())

    def wait_until_ready(self) -> Ports | None:
        """The ports of the ready server; None if it ended before."""
        self._is_decided.wait()
        return self._ports

    def stop(self) -> None:
        """Let `run` stop the server and return."""
        self._stopping.set()

    def run(self) -> str:
        """Serve until `stop`, or until the server dies: why it did, "" after `stop`."""
        # Ray blocks SIGINT in its processes, a child inherits that, and SIGINT is how a guard stops its server.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        # Ray sets this by the cpus of the actor. What a server does must not depend on the engine.
        os.environ.pop("OMP_NUM_THREADS", None)
        environment = dict(self._settings.environment)
        # Without devices of its own a server must not use those of others.
        environment.setdefault(DEVICES, os.environ.get(DEVICES, "") if ray.get_gpu_ids() else "")
        settings = replace(self._settings, host=self._node.address, environment=environment)
        try:
            with launch(settings, progress=self._go_on) as server:
                return self._serve(server)
        except _Stopped:
            return ""
        except (Failure, Mistake, OSError) as error:
            return str(error)
        finally:
            self._is_decided.set()

    def _go_on(self, _: str) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _serve(self, server: Server) -> str:
        self._ports = Ports(
            http=server.http_port,
            grpc=server.grpc_port,
            metrics=server.metrics_port,
            pid=server.pid,
            server_pid=guard_process.server_pid(server.pid),
        )
        self._is_decided.set()
        with reviving(server) as revival:
            while server.running() and revival.failure is None and not self._stopping.wait(POLL_S):
                pass
        if self._stopping.is_set():
            return ""
        reasons = "; ".join(failure_log.reasons_of(server.log))
        return (revival.failure or server.end()) + (f" ({reasons})" if reasons else "")
