"""Any trace file, by what it holds."""

from pathlib import Path

from perf.memory.trace import cuda_snapshot, onnxruntime_profile, tensorflow_log, torch_profile, trace_file
from perf.memory.trace.fields import content
from perf.memory.trace.trace import Trace
from triton_batching.terminal import Mistake

ADVICE = (
    "Give a trace of python -m perf.memory.record, a TensorFlow log with __LOG_MEMORY__ lines, a torch.cuda.memory "
    "snapshot, a torch.profiler chrome trace or an onnxruntime profile."
)


def named(path: Path) -> dict[str, Trace]:
    """The traces of a file that have allocations, by the file's name, numbered where there are several."""
    several = [trace for trace in read(path) if trace.allocations]
    return {path.stem if len(several) == 1 else f"{path.stem}-{place}": one for place, one in enumerate(several)}


def read(path: Path) -> tuple[Trace, ...]:
    """All traces of a file; raises `Mistake`."""
    data = content(path, ADVICE)
    start = data[:4096].lstrip()
    if data.startswith(b"\x80"):
        return cuda_snapshot.parse(data, str(path))
    if start.startswith(b"["):
        return onnxruntime_profile.parse(data, str(path))
    if start.startswith(b"{"):
        ours = f'"{trace_file.KIND}"'.encode() in start
        return trace_file.parse(data, str(path)) if ours else torch_profile.parse(data, str(path))
    if tensorflow_log.MARK.encode() in data:
        return tensorflow_log.parse(data.decode(errors="replace"), str(path))
    raise Mistake(f"{path}: no kind of trace that is known. {ADVICE}")
