"""nvidia-smi: how busy the GPUs are and how much of their memory is taken, sampled while something runs."""

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
    """Samples of all GPUs of the machine: percent of time busy (mean over GPUs) and MiB in use (sum)."""

    busy_percent: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    def mean(self) -> tuple[float, float] | None:
        """Mean of the samples; None on a machine without a GPU."""
        if not self.busy_percent:
            return None
        return statistics.fmean(self.busy_percent), statistics.fmean(self.memory_mib)


def read() -> tuple[float, float] | None:
    """One sample; None where nvidia-smi is not there or says nothing."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[float(cell) for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return (statistics.fmean(row[0] for row in rows), sum(row[1] for row in rows)) if rows else None


@contextlib.contextmanager
def sampled() -> Iterator[GpuUse]:
    """Sample until the block ends; nothing is started where there is no GPU."""
    use, stop = GpuUse(), threading.Event()

    def sample() -> None:
        while (found := read()) is not None:
            use.busy_percent.append(found[0])
            use.memory_mib.append(found[1])
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
