"""The processes of this machine: who they are, how they end, and what they use. The one place that asks psutil."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

# Of /proc/PID/stat after the name in brackets; psutil does not read it.
_EXIT_STATUS = 49


@dataclass(frozen=True, kw_only=True)
class Usage:
    """`cpu_s` and `memory_bytes` of a process and its descendants, as the functions below count them."""

    cpu_s: float
    memory_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """The usage now; a process that has ended counts nothing."""
        return cls(cpu_s=cpu_s(pid), memory_bytes=memory_bytes(tree(pid)))


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The resident memory of one process (with shared pages), its open descriptors and its threads."""

    memory_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "Footprint | None":
        """The footprint now; None if the process has ended."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                resident = process.memory_info().rss
                if not resident:  # a zombie
                    return None
                return cls(memory_bytes=resident, descriptors=process.num_fds(), threads=process.num_threads())
        except psutil.Error:
            return None


def arguments(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended or is a zombie."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def name(pid: int) -> str:
    """The name of the program that runs as `pid`; "" if it has ended."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and its parent has not waited for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return psutil.pid_exists(pid) and not is_zombie(pid)


def wait_status(zombie: int) -> int:
    """How a zombie ended, as `os.waitpid` says it; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{zombie}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[_EXIT_STATUS])


def children(pid: int) -> list[int]:
    """The processes that `pid` started and has not waited for, zombies included."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants; empty if it has ended."""
    try:
        return [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return []


def is_connected(pid: int) -> bool:
    """Whether the process has an open TCP connection."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(connection.status == psutil.CONN_ESTABLISHED for connection in connections)


def listener(port: int) -> int | None:
    """The process of this user (for root: of anyone) that listens on a TCP port; None without one."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    listening = (each for each in connections if each.status == psutil.CONN_LISTEN and each.pid is not None)
    return next((each.pid for each in listening if each.laddr and each.laddr.port == port), None)


def with_argument(text: str) -> Iterator[tuple[int, list[str]]]:
    """This user's processes that have `text` in an argument, with their command lines."""
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            # Another user can start a program with the same argument.
            if any(text in argument for argument in command) and process.uids().effective == os.getuid():
                yield process.pid, command
        except psutil.Error:
            continue


def cpu_s(root: int) -> float:
    """CPU seconds so far of process `root`, of its descendants, and of those that they have waited for."""
    total = 0.0
    for pid in tree(root):
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def cores() -> int:
    """The cores of this machine, whoever may use them."""
    return psutil.cpu_count() or 1


def machine_s() -> float:
    """CPU seconds so far that this machine worked, on all cores."""
    times = psutil.cpu_times()
    # The times of guests are in `user` and `nice` already; idle and iowait are no work.
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def private_bytes(root: int) -> int:
    """Memory of process `root` and its descendants that they do not share; quick, and no burden on the processes.

    `memory_bytes` is exact, but the kernel walks all pages for it, which holds up a process of many gigabytes.
    """
    total = 0
    for pid in tree(root):
        try:
            memory = psutil.Process(pid).memory_info()
        except psutil.Error:
            continue
        total += max(0, memory.rss - memory.shared)
    return total


def own_usage(pid: int) -> Usage | None:
    """CPU seconds of one process and the memory that it does not share, without its descendants; None if it has ended.

    Quick, as `private_bytes` is.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    return Usage(cpu_s=times.user + times.system, memory_bytes=max(0, memory.rss - memory.shared))


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes together; pages that several share count once (proportional set size)."""
    return sum(map(_proportional, pids))


def _proportional(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return 0
