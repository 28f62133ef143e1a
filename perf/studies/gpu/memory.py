"""Step 7: what an instance of each model takes by batch size, of its process and of the GPU, by `perf.memory`."""

from pathlib import Path

from perf.measure.service_time_run import StepProgress
from perf.memory.measured import MIB, Instance
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.record import CUDA, NO_GPU, Finding


def memory(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """The memory of each model at its batch sizes."""
    found: list[Finding] = []
    for name, sizes in extent.memory.items():
        record = Instance.of(name).measured(sizes, folder, lambda text: progress(text, False))
        for rows in sizes:
            what, size = f"{name}: batch {rows}", record.sizes[rows]
            found.append(Finding(what=f"{what}, peak of the process", value=size.peak / MIB, unit="MiB"))
            lost = None if size.device is None else size.device / MIB
            note = "" if extent.device == CUDA else NO_GPU
            found.append(Finding(what=f"{what}, the GPU lost", value=lost, unit="MiB", note=note))
    return found
