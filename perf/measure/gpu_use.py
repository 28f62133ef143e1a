"""Utilisation and memory of the GPUs, sampled from nvidia-smi during a measurement."""

import contextlib
import statistics
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
PERIOD_S = 0.5


@dataclass(kw_only=True)
class GpuUse:
    """Samples over all GPUs of the machine: utilisation in percent (mean) and memory in use in MiB (sum)."""

    busy_percent: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    def mean(self) -> tuple[float, float] | None:
        """Mean of the samples; None on a machine without a GPU."""
        if not self.busy_percent:
            return None
        return statistics.fmean(self.busy_percent), statistics.fmean(self.memory_mib)


def read() -> tuple[float, float] | None:
    """One sample of utilisation and memory; None without a GPU or nvidia-smi."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[float(cell) for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return (statistics.fmean(row[0] for row in rows), sum(row[1] for row in rows)) if rows else None


@contextlib.contextmanager
def sampled() -> Iterator[GpuUse]:
    """Sample until the block ends; without a GPU nothing is sampled."""
    use, stop = GpuUse(), threading.Event()

    def sample() -> None:
        while (values := read()) is not None:
            use.busy_percent.append(values[0])
            use.memory_mib.append(values[1])
            if stop.wait(PERIOD_S):
                return

    if read() is None:
        yield use
        return
    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield use
    finally:
        stop.set()
        thread.join()
