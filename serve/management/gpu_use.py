"""Utilisation and memory of the GPUs, sampled during a measurement: from the server's metrics, else from the driver."""

import contextlib
import itertools
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from serve.management.metrics import Device, Metrics, MetricsError

QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
BY_PROCESS = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
PERIOD_S = 0.5
# A machine on which so many reads fail at the beginning has no GPU.
TRIES = 3
# Triton reads the GPUs every 2 s unless told otherwise, which is longer than some windows.
METRICS_INTERVAL = f"--metrics-interval-ms={1000 * PERIOD_S:.0f}"
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """Samples of all GPUs as one device, each with its time on the monotonic clock in nanoseconds.

    `read` reads the GPUs; None if that fails.
    """

    samples: list[tuple[int, Device]] = field(default_factory=list)
    read: Callable[[], Device | None] = lambda: None

    def sample(self) -> None:
        """Take a sample now, if the GPUs can be read."""
        if (device := self.read()) is not None:
            self.samples.append((time.monotonic_ns(), device))

    def between(self, first_ns: int, last_ns: int) -> "GpuUse":
        """The samples within a window."""
        return GpuUse(samples=[(at, device) for at, device in self.samples if first_ns <= at <= last_ns])

    @property
    def busy(self) -> float | None:
        """The mean utilisation, 0 to 1; None without samples that have one."""
        return _mean(device.busy for _, device in self.samples)

    @property
    def mean_mib(self) -> float | None:
        """The mean memory in use; None without samples."""
        return statistics.fmean(device.memory_bytes for _, device in self.samples) / MIB if self.samples else None

    @property
    def peak_mib(self) -> float | None:
        """The most memory in use; None without samples."""
        return max(device.memory_bytes for _, device in self.samples) / MIB if self.samples else None


def driver() -> Device | None:
    """All GPUs of this machine as nvidia-smi sees them now; None without a GPU or nvidia-smi."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        return parse(answer)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def parse(answer: str) -> Device | None:
    """All GPUs in nvidia-smi's answer, a line each (percent, MiB); raises `ValueError` for another text.

    What a device lacks is in brackets, such as the `[N/A]` percent of a slice of a GPU (MIG).
    """
    rows = [line.split(",") for line in answer.splitlines() if line.strip()]
    return together(
        [
            Device(
                busy=None if "[" in busy else float(busy) / 100,
                memory_bytes=float(mib) * MIB,
                memory_total_bytes=0.0,
            )
            for busy, mib in rows
        ]
    )


def by_process() -> dict[int, float]:
    """The bytes on all GPUs of each process that nvidia-smi sees; empty without one."""
    try:
        return parse_processes(
            subprocess.run(BY_PROCESS, capture_output=True, text=True, timeout=10, check=True).stdout
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


def parse_processes(answer: str) -> dict[int, float]:
    """The bytes by process in nvidia-smi's answer, a line for each process and GPU (pid, MiB)."""
    found: dict[int, float] = {}
    for line in answer.splitlines():
        pid, _, mib = line.partition(",")
        if mib and "[" not in mib:
            found[int(pid)] = found.get(int(pid), 0.0) + float(mib) * MIB
    return found


def exported(metrics_url: str) -> Device | None:
    """All GPUs in the server's metrics; None if it exports none, as one that was built without GPU metrics."""
    try:
        return together(Metrics.read(metrics_url).gpus)
    except MetricsError:
        return None


def together(gpus: Sequence[Device]) -> Device | None:
    """Several GPUs as one device: mean utilisation where it is known, sum of memory; None without GPUs."""
    if not gpus:
        return None
    return Device(
        busy=_mean(gpu.busy for gpu in gpus),
        memory_bytes=sum(gpu.memory_bytes for gpu in gpus),
        memory_total_bytes=sum(gpu.memory_total_bytes for gpu in gpus),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


@contextlib.contextmanager
def sampled(metrics_url: str | None = None) -> Iterator[GpuUse]:
    """Sample until the block ends, whether or not a read fails; without a GPU nothing is sampled.

    The server with its metrics at `metrics_url` (host:port) is asked; one that exports no GPU, and None: the driver.
    """
    use, stop = GpuUse(read=_source(metrics_url)), threading.Event()

    def sample() -> None:
        for count in itertools.count(1):
            use.sample()
            if stop.wait(PERIOD_S) or (count >= TRIES and not use.samples):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield use
    finally:
        stop.set()
        thread.join()


def _source(metrics_url: str | None) -> Callable[[], Device | None]:
    if metrics_url is None or exported(metrics_url) is None:
        return driver
    return lambda: exported(metrics_url)
