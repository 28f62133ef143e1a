"""A Ray of three nodes on this machine, on loopback, so that a node can be killed."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from triton_batching import processes
from triton_batching.terminal import Failure

NODES = ("a", "b", "c")
CPUS = 4
OBJECT_STORE_BYTES = 80_000_000
LOOPBACK = "127.0.0.1"
# Ray's servers listen on every address, unless it is for one machine only; this variable says that on Linux, too.
VARIABLES = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class Nodes:
    """The nodes by name; programs connect to `address`."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes = {name: self._added(name) for name in NODES}

    @property
    def address(self) -> str:
        """The address of the first node."""
        return str(self._cluster.address)

    def kill(self, name: str) -> None:
        """Kill a node and everything on it."""
        if name not in self._nodes:
            raise Failure(f"'{name}' is no node of this Ray.")
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def _added(self, name: str) -> Any:
        return self._cluster.add_node(
            num_cpus=CPUS,
            object_store_memory=OBJECT_STORE_BYTES,
            node_ip_address=LOOPBACK,
            node_name=name,
            include_dashboard=False,
        )


@contextlib.contextmanager
def running() -> Iterator[Nodes]:
    """Start the nodes, name them in RAY_ADDRESS, and end them at the end."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        (Path(folder) / "ray").mkdir()
        with mock.patch.dict(os.environ, VARIABLES | {"RAY_TMPDIR": folder}):
            # Ray reads its variables when it is imported.
            from ray.cluster_utils import Cluster

            cluster: Any = Cluster(shutdown_at_exit=True)  # type: ignore[no-untyped-call, unused-ignore]
            try:
                nodes = Nodes(cluster)
                with mock.patch.dict(os.environ, {"RAY_ADDRESS": nodes.address}):
                    yield nodes
            finally:
                below = processes.tree(os.getpid())[1:]
                cluster.shutdown()
                _end(below)


def _end(pids: list[int]) -> None:
    """Kill Ray's helpers, which it forgets on a slow machine."""
    for pid in pids:
        if any("ray" in argument for argument in processes.arguments(pid)[:2]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
