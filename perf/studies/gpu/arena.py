"""Step 7: the memory estimate against what onnxruntime takes, on the CPU in this process and on a GPU by its driver."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import psutil

from export.repository import REPOSITORY, served_file
from perf.measure.service_time_run import StepProgress
from perf.memory.estimate import session
from perf.memory.estimate.batch_memory import Model
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.record import CUDA, NO_GPU, Finding
from perf.studies.memory_lab.record import Draws, draws
from serve.management import gpu_use
from triton_batching.terminal import Failure

MIB = 2**20
PROVIDERS = {CUDA: "CUDAExecutionProvider"}


def arena(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """The growth of each model from its smallest to its largest batch, estimated and measured."""
    found: list[Finding] = []
    for name, sizes in extent.memory.items():
        progress(name, False)
        found += _model(extent, name, served_file(name, REPOSITORY), sizes)
    return found


def _model(extent: Extent, name: str, file: Path, sizes: Sequence[int]) -> list[Finding]:
    feeds = draws(file)
    model = Model.of(file, level="all", pattern=True)
    estimated = (model.held_after(sizes, {}) - model.held_after(sizes[:1], {})) / MIB
    what, where = f"{name}: growth from batch {sizes[0]} to {sizes[-1]}", f"{estimated:.3g} MiB estimated for the CPU"
    grown = Finding(
        what=f"{what}, this process", value=growth(file, feeds, sizes, "cpu", process_bytes), unit="MiB", note=where
    )
    on_gpu = f"{what}, CUDA arena by the driver"
    if extent.device != CUDA:
        return [grown, Finding(what=on_gpu, note=NO_GPU)]
    return [
        grown,
        Finding(what=on_gpu, value=growth(file, feeds, sizes, CUDA, gpu_bytes), unit="MiB", note=where),
    ]


def growth(file: Path, feeds: Draws, sizes: Sequence[int], device: str, read: Callable[[], float]) -> float:
    """MiB that a session takes for its largest batch beyond what it took for its smallest; each size runs twice.

    The first run also makes CUDA's context and the libraries' own memory, which the difference leaves out.
    """
    running = opened(file, device)
    after = []
    for size in sizes:
        for _ in range(2):
            running.run(None, dict(feeds(size)))
        after.append(read())
    return (after[-1] - after[0]) / MIB


def opened(file: Path, device: str) -> Any:
    """A session on the device; raises `Failure` if it would run on another one."""
    options = session.settings("all")
    options.enable_mem_pattern = True
    if device != CUDA:
        return session.opened(file, options)
    onnxruntime.preload_dlls()
    running = onnxruntime.InferenceSession(str(file), options, providers=[PROVIDERS[CUDA], *session.CPU])
    if PROVIDERS[CUDA] not in running.get_providers():
        raise Failure(f"{file}: onnxruntime could not start CUDA and would use the CPU. Its log has the reason.")
    return running


def process_bytes() -> float:
    """The memory of this process."""
    return float(psutil.Process().memory_info().rss)


def gpu_bytes() -> float:
    """The memory in use on the GPUs, by all programs; raises `Failure` if the driver does not say."""
    device = gpu_use.driver()
    if device is None:
        raise Failure("nvidia-smi says nothing of a GPU. Look whether it runs: nvidia-smi.")
    return device.memory_bytes
