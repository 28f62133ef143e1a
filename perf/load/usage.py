"""What the server and the clients used of the machine in a window of a load."""

import contextlib
import time

from perf.load.crew import Crew
from perf.load.deployment import Running
from perf.records.load_record import CpuTime
from perf.records.resource_use import ResourceUse
from serve.management import gpu_use
from serve.management.gpu_use import GpuUse
from triton_batching import processes
from triton_batching.machine import cores


def sampled(server: Running) -> contextlib.AbstractContextManager[GpuUse]:
    """Samples of the GPUs of a server that was started here."""
    return contextlib.nullcontext(GpuUse()) if server.server is None else gpu_use.sampled(server.server.metrics_url)


def used(server: Running, busy: CpuTime, first_ns: int, last_ns: int, gpu: GpuUse) -> ResourceUse:
    """What the server used; the memory is read after the window, because the kernel holds the processes up for it."""
    if server.server is None:
        return ResourceUse()
    seconds = busy.server_s
    gpu.sample()  # one at least, even if each reading takes as long as the window
    return ResourceUse(
        gpu_busy=gpu.between(first_ns, last_ns).busy,
        gpu_memory_mib=gpu.between(first_ns, time.monotonic_ns()).peak_mib,
        server_cores=None if seconds is None or not busy.wall_s else seconds / busy.wall_s,
        server_memory_mib=processes.memory_bytes(processes.tree(server.server.pid)) / 2**20 or None,
    )


def cpu_time(server: Running, members: Crew) -> CpuTime:
    """CPU seconds and time so far, to be subtracted."""
    return CpuTime(
        clients_s=members.cpu_s,
        server_s=None if server.server is None else processes.cpu_s(server.server.pid),
        machine_s=processes.machine_s(),
        wall_s=time.monotonic(),
        cores=cores(),
    )
