"""One replica that runs in Ray, as this program sees it: its actor, and what the actor has answered so far."""

import contextlib
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serve import guard
from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.ray_actor import THREADS, Place, Ports, ReplicaActor
from serve.cluster.ray_nodes import RAY, Node
from triton_batching import processes

# When Ray ends an actor it kills the children of its process. The guard must live, to stop its server and to clean up.
RUNTIME = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "false"}}
# A replica without a process after this time has no room (on a busy node Ray takes 30 s to start one). A replica
# that was asked to stop that long ago is killed.
PLACE_S, STOP_S = 120.0, 30.0


class RayRun:
    """A replica and its actor; `state` is what was known of it at the last `look`."""

    def __init__(self, replica: Replica, node: Node) -> None:
        self.replica, self.node = replica, node
        self.state = ReplicaState(phase=Phase.STARTING, node=node.name)
        self.is_node_lost = False
        self._actor = (
            RAY.remote(ReplicaActor)
            .options(
                name=replica.name,
                num_cpus=replica.cpus,
                num_gpus=replica.gpus,
                max_concurrency=THREADS,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
                runtime_env=RUNTIME,
            )
            .remote(replica.settings)
        )
        self._started, self._stopping = time.monotonic(), 0.0
        self._machine = ""
        self._answers: dict[Any, Callable[[Any], None]] = {
            self._actor.place.remote(): self._placed,
            self._actor.wait_until_ready.remote(): self._ready,
            self._actor.run.remote(): self._ended,
        }

    @property
    def references(self) -> list[Any]:
        """The answers that have not come yet, as Ray's references."""
        return list(self._answers)

    @property
    def is_live(self) -> bool:
        """Whether the replica has not ended."""
        return self.state.phase is not Phase.ENDED

    def look(self, come: Collection[Any]) -> None:
        """Read those answers of `references` that have come, and end the replica if one is late."""
        for reference in [reference for reference in self._answers if reference in come]:
            answer = self._answers.pop(reference, None)
            if answer is None:  # the answer before it was the end
                return
            try:
                answer(ray.get(reference))
            except RayError as error:
                self.is_node_lost = isinstance(error, ActorUnavailableError)
                self._fail(_why(error, self.node))
        if not self.is_live:
            return
        now = time.monotonic()
        if not self._machine and now - self._started > PLACE_S:
            self._fail(f"node {self.node.name} did not start it in {PLACE_S:g} s: it has no room or is overloaded")
        elif self._stopping and now - self._stopping > STOP_S:
            self._fail(f"it did not stop in {STOP_S:g} s and was killed")

    def stop(self) -> None:
        """Ask the actor to stop; one that has no place yet is removed."""
        if not self.is_live or self._stopping:
            return
        self._stopping = time.monotonic()
        self._actor.stop.remote()
        if not self._machine:
            ray.kill(self._actor)

    def is_left(self) -> bool:
        """Whether the guard of a server whose actor died is still stopping it on this machine."""
        if self._machine != socket.gethostname() or not processes.is_running(self.state.pid):
            return False
        # A process that is just ending has no arguments any more; one with others is another process.
        arguments = processes.arguments(self.state.pid)
        return not arguments or guard.__name__ in arguments

    def _placed(self, place: Place) -> None:
        self._machine = place.machine
        self.state = replace(self.state, host=place.host)

    def _ready(self, ports: Ports | None) -> None:
        if ports is not None:
            self.state = replace(
                self.state,
                phase=Phase.READY,
                http_port=ports.http,
                grpc_port=ports.grpc,
                metrics_port=ports.metrics,
                pid=ports.pid,
                server_pid=ports.server_pid,
            )

    def _ended(self, problem: str) -> None:
        self.state = replace(self.state, phase=Phase.ENDED, problem=problem)
        self._answers.clear()
        with contextlib.suppress(RayError):
            ray.kill(self._actor)

    def _fail(self, problem: str) -> None:
        self._ended("" if self._stopping else problem)


def _why(error: RayError, node: Node) -> str:
    """A sentence about an actor that gives no more answers."""
    text = str(error)
    if isinstance(error, ActorUnavailableError) or "node has died" in text:
        return f"its process in Ray on node {node.name} does not answer any more; the node may be lost"
    if "failed to import" in text or "No module named" in text:
        return (
            f"node {node.name} cannot import this project as it is here. Install the same version on each node, in the "
            "same folder, with its extra ray, and start Ray there from its environment"
        )
    if isinstance(error, ActorDiedError) and "creation task" not in text:
        return f"its process in Ray on node {node.name} died"
    return f"Ray on node {node.name}: {text.strip().splitlines()[-1]}"
