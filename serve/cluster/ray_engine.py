"""Replicas on several machines: Ray places an actor for each on a node, and each actor starts a tritonserver.

An actor that dies is not started again by Ray: the cluster starts another replica, which may be on another node.
"""

import time
from collections.abc import Mapping, Sequence

import ray

from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.ray_nodes import Placed, check_room, choose, nodes
from serve.cluster.ray_run import STOP_S, RayRun
from triton_batching.terminal import Mistake

POLL_S = 0.05
# The guard of an actor that died needs at most this long to stop its server.
GUARD_S = 20.0
# Ray counts a node as lost after about 12 s.
LOST_S = 30.0


class RayEngine:
    """Starts replicas on the nodes of the Ray that this program is connected to (`ray_session.connected`)."""

    def __init__(self) -> None:
        self._runs: dict[str, RayRun] = {}
        self._refused: dict[str, ReplicaState] = {}
        # Until when nodes whose replicas do not answer come last, by Ray's ids.
        self._lost: dict[str, float] = {}

    def check(self, replicas: Sequence[Replica]) -> None:
        """Raise `Mistake` if the nodes have no room for these replicas, before any starts."""
        check_room(replicas, nodes())

    def start(self, replica: Replica) -> None:
        """Begin to start a replica; its state says when it is ready, or that it ended."""
        now = time.monotonic()
        self._lost = {node_id: until for node_id, until in self._lost.items() if now < until}
        placed = [Placed(replica=run.replica, node=run.node) for run in self._runs.values() if run.is_live]
        try:
            node = choose(replica, nodes(), placed, self._lost)
        except Mistake as mistake:
            self._refused[replica.name] = ReplicaState(phase=Phase.ENDED, problem=str(mistake))
        else:
            self._runs[replica.name] = RayRun(replica, node)

    def states(self) -> Mapping[str, ReplicaState]:
        """The state of every replica that was started and not forgotten, by name."""
        waiting = [reference for run in self._runs.values() for reference in run.references]
        come = set(ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]) if waiting else set()
        for run in list(self._runs.values()):
            run.look(come)
            if run.is_node_lost:
                self._lost.setdefault(run.node.node_id, time.monotonic() + LOST_S)
        return {name: run.state for name, run in self._runs.items()} | self._refused

    def stop(self, name: str) -> None:
        """Begin to stop a replica; requests in flight are answered. Its state says when it has ended."""
        if name in self._runs:
            self._runs[name].stop()

    def forget(self, name: str, *, keeps_log: bool = False) -> None:
        """Drop the state of a replica that has ended; its node keeps no log."""
        self._runs.pop(name, None)
        self._refused.pop(name, None)

    def close(self) -> None:
        """Stop every replica and return when none is left."""
        for run in self._runs.values():
            run.stop()
        until = time.monotonic() + STOP_S + GUARD_S
        while self._is_busy() and time.monotonic() < until:
            time.sleep(POLL_S)
        self._runs.clear()
        self._refused.clear()

    def _is_busy(self) -> bool:
        self.states()
        return any(run.is_live or run.is_left() for run in self._runs.values())
