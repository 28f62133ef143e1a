"""Processes and shared-memory files on this machine, as the tests count them."""

import time
from collections.abc import Callable
from pathlib import Path

from triton_batching.processes import is_running, tree

SHARED_MEMORY = Path("/dev/shm")


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    return set(tree(pid)) - {pid}


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie does not."""
    return {pid for pid in pids if is_running(pid)}


def leftovers(prefix: str) -> list[str]:
    """One server's files in /dev/shm."""
    return sorted(path.name for path in SHARED_MEMORY.glob(f"{prefix}*"))


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Poll until `condition` holds; whether it did in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
