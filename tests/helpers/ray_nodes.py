"""A Ray of several nodes on this machine, on loopback."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from processes import alive, descendants
from ray._private import ray_constants
from ray.cluster_utils import Cluster

from serve.cluster import ray_session
from triton_batching.processes import arguments

CLUSTER: Any = Cluster
MEMORY = 80_000_000
LOOPBACK = "127.0.0.1"


@contextmanager
def cluster(*names: str, cpus: float, gpus: float = 0.0) -> Iterator[Any]:
    """Nodes with these names and sizes; the first one is the head, to which programs connect."""
    patch = pytest.MonkeyPatch()
    # Ray reads the variable in its processes, and has read it in this one.
    patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        (Path(folder) / "ray").mkdir()
        patch.setenv("RAY_TMPDIR", folder)
        nodes: Any = CLUSTER(shutdown_at_exit=True)
        try:
            for name in names:
                add(nodes, name, cpus=cpus, gpus=gpus)
            yield nodes
        finally:
            helpers = set(filter(is_helper, descendants(os.getpid())))
            nodes.shutdown()
            # Ray forgets them if the machine is slow.
            for pid in alive(helpers):
                os.kill(pid, signal.SIGKILL)
            patch.undo()


def add(nodes: Any, name: str, *, cpus: float, gpus: float = 0.0) -> Any:
    """A further node."""
    return nodes.add_node(
        num_cpus=cpus,
        num_gpus=gpus,
        object_store_memory=MEMORY,
        node_ip_address=LOOPBACK,
        node_name=name,
        include_dashboard=False,
    )


def is_helper(pid: int) -> bool:
    """Whether it is one of Ray's processes in Python."""
    return "".join(arguments(pid)).startswith(ray_session.HELPER)
