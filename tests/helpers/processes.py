"""Processes and shared-memory files on this machine, as the tests count them."""

import time
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, from /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in brackets may hold spaces; the parent is the second field after it.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found: set[int] = set()
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level} - found:
        found |= level
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run (a zombie does not)."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


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
