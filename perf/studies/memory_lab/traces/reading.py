"""Reads a trace file; the content shows which of the known formats it has."""

from pathlib import Path

from perf.studies.memory_lab.traces import cuda_snapshot, onnxruntime_profile, tensorflow_log, torch_profile, trace_file
from perf.studies.memory_lab.traces.fields import content
from perf.studies.memory_lab.traces.trace import Trace
from triton_batching.terminal import Mistake

ADVICE = (
    "Give a trace of python -m perf.studies.memory_lab.record, a TensorFlow log with __LOG_MEMORY__ lines, a "
    "torch.cuda.memory snapshot, a torch.profiler chrome trace or an onnxruntime profile."
)


def named(path: Path) -> dict[str, Trace]:
    """The non-empty traces of a file by the file's name, with a number if there are several."""
    traces = [trace for trace in read(path) if trace.allocations]
    return {path.stem if len(traces) == 1 else f"{path.stem}-{number}": trace for number, trace in enumerate(traces)}


def read(path: Path) -> tuple[Trace, ...]:
    """All traces of a file; raises `Mistake`."""
    data = content(path, ADVICE)
    start = data[:4096].lstrip()
    if data.startswith(b"\x80"):
        return cuda_snapshot.parse(data, str(path))
    if start.startswith(b"["):
        return onnxruntime_profile.parse(data, str(path))
    if start.startswith(b"{"):
        own = f'"{trace_file.KIND}"'.encode() in start
        return trace_file.parse(data, str(path)) if own else torch_profile.parse(data, str(path))
    if tensorflow_log.MARK.encode() in data:
        return tensorflow_log.parse(data.decode(errors="replace"), str(path))
    raise Mistake(f"{path}: no known kind of trace. {ADVICE}")
