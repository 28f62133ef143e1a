"""The machine and the package versions of a measurement."""

import functools
import importlib.metadata
import math
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

# The kernel's own share of the memory differs from start to start, and with its version.
MEMORY_TOLERANCE = 0.05
PACKAGES = ("nvidia-pytriton", "numpy", "onnxruntime", "onnxruntime-gpu", "tritonclient")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware and the system of a measurement; two records are comparable only if these are equal.

    Amounts of memory that differ by 5 % at most are equal.
    """

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    gpu: str | None

    @classmethod
    @functools.cache
    def this(cls) -> "Machine":
        """This machine, without names of hosts or persons."""
        return cls(
            cpu=_cpu(),
            cores=cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            system=f"{platform.system()} {platform.machine()}",
            gpu=_gpu(),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Machine):
            return NotImplemented
        same_memory = math.isclose(self.memory_bytes, other.memory_bytes, rel_tol=MEMORY_TOLERANCE)
        return self._exact == other._exact and same_memory

    def __hash__(self) -> int:
        return hash(self._exact)

    @property
    def _exact(self) -> tuple[object, ...]:
        """What is equal on the same machine."""
        return self.cpu, self.cores, self.system, self.gpu

    def __str__(self) -> str:
        gpu = f", {self.gpu}" if self.gpu else ", no GPU"
        return f"{self.cpu}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB{gpu}"


@functools.cache
def versions() -> dict[str, str]:
    """The versions of Python and of those `PACKAGES` that are installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def cores() -> int:
    """Cores that this process may use: its affinity, or fewer if a container has a quota (cgroup v2 `cpu.max`)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):
        return allowed


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The features of the CPU as Linux names them, such as `avx2` and `avx512f`; empty if it does not say."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _gpu() -> str | None:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return ", ".join(answer.split("\n")).strip(", ") or None
