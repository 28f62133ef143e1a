"""The nodes of Ray, and which of them gets the next replica.

This program chooses the node, not Ray. A placement group would keep its place on a node that is lost until Ray counts
the node as lost, which takes about 12 s, and Ray spreads actors without regard to their deployments.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from serve.cluster.engine import Replica
from triton_batching.terminal import Mistake

# Its functions have no types.
RAY: Any = ray
ADD = "or add a node: ray start --address=HEAD:PORT"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that Ray counts as living. name: what `nodes` in a plan calls it; node_id: what Ray calls it."""

    name: str
    node_id: str
    address: str
    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: float

    def __str__(self) -> str:
        gpus = f" and {self.free_gpus:g} of {self.gpus:g} gpus" if self.gpus else ""
        return f"{self.name}: {self.free_cpus:g} of {self.cpus:g} cpus{gpus} free"

    def has_room(self, replica: Replica) -> bool:
        """Whether the replica fits into what is free."""
        return replica.cpus <= self.free_cpus and replica.gpus <= self.free_gpus

    def without(self, replica: Replica) -> "Node":
        """This node with the replica on it."""
        return replace(self, free_cpus=self.free_cpus - replica.cpus, free_gpus=self.free_gpus - replica.gpus)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A replica and the node that it was placed on."""

    replica: Replica
    node: Node


def nodes() -> list[Node]:
    """The living nodes of the Ray that this program is connected to, by name."""
    living = [entry for entry in RAY.nodes() if entry["Alive"]]
    count = Counter(entry["NodeName"] for entry in living)
    free = RAY._private.state.available_resources_per_node()
    known = [_node(entry, free.get(entry["NodeID"], {}), count[entry["NodeName"]] == 1) for entry in living]
    return sorted(known, key=lambda node: node.name)


def own_node() -> Node:
    """The node on which this process of Ray runs."""
    node_id = RAY.get_runtime_context().get_node_id()
    return next(node for node in nodes() if node.node_id == node_id)


def choose(replica: Replica, present: Sequence[Node], placed: Sequence[Placed], lost: Iterable[str] = ()) -> Node:
    """The node for a replica; raises `Mistake` if none is large enough.

    A node with room comes first, then the one with the fewest replicas of the same deployment. Without a node with
    room the replica waits at one of them. lost: the ids of nodes whose replicas do not answer, which come last.
    """
    wanted = set(replica.nodes)
    candidates = [node for node in present if not wanted or wanted & {node.name, node.node_id, node.address}]
    if not candidates:
        names = ", ".join(node.name for node in present)
        raise Mistake(f"deployment {replica.deployment}: no node {' or '.join(replica.nodes)}. Ray has {names}.")
    candidates = [node for node in candidates if node.cpus >= replica.cpus and node.gpus >= replica.gpus]
    if not candidates:
        raise Mistake(
            f"deployment {replica.deployment}: no node has room for a replica that takes {_size([replica])} "
            f"({_list(present)}). Lower that in the plan, {ADD}."
        )

    def order(node: Node) -> tuple[bool, bool, int, int, float, str]:
        here = [other.replica for other in placed if other.node.node_id == node.node_id]
        same = sum(other.deployment == replica.deployment for other in here)
        left = _left(node, here)
        return node.node_id in lost, not left.has_room(replica), same, len(here), -left.free_cpus, node.name

    return min(candidates, key=order)


def check_room(replicas: Sequence[Replica], present: Sequence[Node]) -> None:
    """Raise `Mistake` if the nodes have no room for all of these replicas now."""
    left = {node.node_id: node for node in present}
    placed: list[Placed] = []
    for replica in replicas:
        node = choose(replica, list(left.values()), placed)
        if not node.has_room(replica):
            raise Mistake(
                f"{len(replicas)} more replicas take {_size(replicas)}, and the nodes have too little room "
                f"({_list(present)}). Have fewer replicas or smaller ones, {ADD}."
            )
        placed.append(Placed(replica=replica, node=node))
        left[node.node_id] = node.without(replica)


def _node(entry: Mapping[str, Any], free: Mapping[str, float], is_unique: bool) -> Node:
    """A node; nodes with the same name are called by Ray's ids."""
    total = entry["Resources"]
    return Node(
        name=entry["NodeName"] if is_unique else entry["NodeID"],
        node_id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        cpus=total.get("CPU", 0.0),
        gpus=total.get("GPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        free_gpus=free.get("GPU", 0.0),
    )


def _left(node: Node, here: Iterable[Replica]) -> Node:
    """The node with what is free beside these replicas; Ray's figure of what is free may not count them yet."""
    left = replace(node, free_cpus=node.cpus, free_gpus=node.gpus)
    for replica in here:
        left = left.without(replica)
    return replace(left, free_cpus=min(left.free_cpus, node.free_cpus), free_gpus=min(left.free_gpus, node.free_gpus))


def _size(replicas: Iterable[Replica]) -> str:
    cpus, gpus = sum(replica.cpus for replica in replicas), sum(replica.gpus for replica in replicas)
    return f"{cpus:g} cpus" + (f" and {gpus:g} gpus" if gpus else "")


def _list(present: Iterable[Node]) -> str:
    return "; ".join(map(str, present))
