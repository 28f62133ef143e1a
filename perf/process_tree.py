"""A process and all below it in /proc: the CPU time that they used, and the memory that they hold."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# After the name in brackets, which may hold blanks: state, parent, ..., utime and stime.
PARENT, USER, SYSTEM = 1, 11, 12


@dataclass(frozen=True, kw_only=True)
class Usage:
    """`cpu_s` since each process started, summed; `memory_bytes` with shared pages counted once (PSS)."""

    cpu_s: float
    memory_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """What the tree under `pid` uses now; a process that ends meanwhile counts nothing."""
        ticks = os.sysconf("SC_CLK_TCK")
        cpu, memory = 0.0, 0
        for process in tree(pid):
            fields = _fields(process)
            if fields:
                cpu += (int(fields[USER]) + int(fields[SYSTEM])) / ticks
                memory += _memory(process)
        return cls(cpu_s=cpu, memory_bytes=memory)


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
