"""What processes use, read from /proc: CPU seconds of a process and all below it, and memory shared out fairly."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# After the name in brackets, which may hold blanks: state, parent, ..., utime, stime, and both of children waited for.
PARENT, TICKS, THREADS = 1, slice(11, 15), 17
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """`cpu_s` and `memory_bytes` of a process and all below it, as the functions below count them."""

    cpu_s: float
    memory_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """What the tree under `pid` uses now; a process that ends meanwhile counts nothing."""
        return cls(cpu_s=cpu_s(pid), memory_bytes=memory_bytes(tree(pid)))


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one process holds: resident memory, shared pages included, open descriptors and threads."""

    memory_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "Footprint | None":
        """What `pid` holds now; None when it has ended."""
        try:
            pages = int((PROC / str(pid) / "statm").read_text().split()[1])
            descriptors = sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
            threads = int(_fields(pid)[THREADS])
        except (OSError, IndexError):
            return None
        # A process that has ended but was not waited for has no memory.
        return cls(memory_bytes=pages * PAGE_BYTES, descriptors=descriptors, threads=threads) if pages else None


def cpu_s(root: int) -> float:
    """CPU seconds so far of process `root`, of its descendants, and of those that they have waited for."""
    return sum(int(ticks) for pid in tree(root) for ticks in _fields(pid)[TICKS]) / TICKS_PER_S


def machine_s() -> float:
    """CPU seconds so far that all processes of this machine took, on all cores."""
    # user nice system idle iowait irq softirq steal: what waits is not work.
    fields = [int(ticks) for ticks in (PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_S


def name(pid: int) -> str:
    """The name of the program that runs as `pid`, cut off after 15 letters; no letters when it has ended."""
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes together; pages that several share count once (proportional set size)."""
    return sum(map(_memory, pids))


def tree(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found = [pid]
    for process in found:  # grows while it is read
        found += children.get(process, [])
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in PROC.glob("[0-9]*"):
        if fields := _fields(int(folder.name)):
            yield int(folder.name), int(fields[PARENT])


def _fields(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _memory(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
