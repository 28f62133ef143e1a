"""The file of one trace: JSON, smaller than the files of the tools, without facts about the machine."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perf.studies.memory_lab.traces.fields import content
from perf.studies.memory_lab.traces.trace import Allocation, Remark, Trace
from triton_batching import whole_file
from triton_batching.terminal import Mistake

KIND = "memory trace"
COLUMNS = ("id", "requested_bytes", "held_bytes", "allocated_at", "freed_at", "name")
ADVICE = "Record a trace: python -m perf.studies.memory_lab.record MODEL."

Count = Annotated[int, msgspec.Meta(ge=0)]


class _File(msgspec.Struct):
    kind: Literal["memory trace"]
    format: Literal[1]
    source: str
    device: str
    model: str
    rows: int | None
    moments: Count
    remarks: tuple[Remark, ...]
    allocations: tuple[tuple[int | str, Count, Count | None, Count, Count | None, str], ...]


def write(trace: Trace, path: Path) -> Path:
    """Write `trace`, one allocation per line."""
    head = {"kind": KIND, "format": 1, "source": trace.source, "device": trace.device, "model": trace.model}
    head |= {"rows": trace.rows, "moments": trace.moments}
    head |= {"remarks": [dataclasses.asdict(remark) for remark in trace.remarks], "columns": COLUMNS}
    lines = ",\n".join(json.dumps([getattr(buffer, name) for name in COLUMNS]) for buffer in trace.allocations)
    return whole_file.write(path, f'{json.dumps(head)[:-1]}, "allocations": [\n{lines}\n]}}\n')


def read(path: Path) -> tuple[Trace, ...]:
    """The trace of a file, as a tuple of one; raises `Mistake`."""
    return parse(content(path, ADVICE), str(path))


def parse(data: bytes, origin: str = "trace") -> tuple[Trace, ...]:
    """The trace in a file's bytes, as a tuple of one; raises `Mistake`."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Mistake(f"{origin}: not a {KIND} of format 1 ({error}). {ADVICE}") from error
    trace = Trace(
        source=file.source,
        device=file.device,
        model=file.model,
        rows=file.rows,
        moments=file.moments,
        remarks=file.remarks,
        allocations=tuple(Allocation(**dict(zip(COLUMNS, row, strict=True))) for row in file.allocations),  # type: ignore[arg-type]
    )
    return (trace,)
