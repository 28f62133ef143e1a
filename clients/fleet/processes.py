"""What processes use, read from /proc: CPU seconds of a process and all below it, and memory shared out fairly."""

import os
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(root: int) -> float:
    """CPU seconds so far of process `root`, of its descendants, and of those that they have waited for."""
    stats = dict(_stats())
    below = {root}
    while grown := {pid for pid, (parent, _) in stats.items() if parent in below} - below:
        below |= grown
    return sum(stats[pid][1] for pid in below if pid in stats) / TICKS_PER_S


def _stats() -> list[tuple[int, tuple[int, int]]]:
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                # The name in brackets may hold anything, so fields are counted from its end.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            found.append((int(folder.name), (int(fields[1]), sum(int(ticks) for ticks in fields[11:15]))))
    return found


def machine_s() -> float:
    """CPU seconds so far that all processes of this machine took, on all cores."""
    # user nice system idle iowait irq softirq steal: what waits is not work.
    fields = [int(ticks) for ticks in (PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_S


def memory_bytes(pids: list[int]) -> int:
    """Memory of these processes together; pages that several share count once (proportional set size)."""
    total = 0
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))
