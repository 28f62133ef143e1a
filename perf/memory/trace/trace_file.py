"""Our own file of one trace: JSON, smaller than what the tools write, with nothing of the machine in it."""

import dataclasses
import json
from pathlib import Path

from perf.memory.trace.fields import content, field
from perf.memory.trace.json_text import parsed
from perf.memory.trace.trace import Allocation, Remark, Trace
from triton_batching.terminal import Mistake

KIND = "memory trace"
FORMAT = 1
COLUMNS = ("id", "requested_bytes", "held_bytes", "allocated_at", "freed_at", "name")
ADVICE = "Record one: python -m perf.memory.record MODEL."


def write(trace: Trace, path: Path) -> Path:
    """Write `trace`, one allocation per line."""
    head = {"kind": KIND, "format": FORMAT, "source": trace.source, "device": trace.device, "model": trace.model}
    head |= {"rows": trace.rows, "moments": trace.moments}
    head |= {"remarks": [dataclasses.asdict(one) for one in trace.remarks], "columns": COLUMNS}
    lines = ",\n".join(json.dumps([getattr(one, name) for name in COLUMNS]) for one in trace.allocations)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(head)[:-1]}, "allocations": [\n{lines}\n]}}\n')
    return path


def read(path: Path) -> tuple[Trace, ...]:
    """The one trace of a file; raises `Mistake`."""
    return parse(content(path, ADVICE), str(path))


def parse(data: bytes, origin: str = "trace") -> tuple[Trace, ...]:
    """The one trace of a file's bytes; raises `Mistake`."""
    of = parsed(data, origin)
    if not isinstance(of, dict) or of.get("kind") != KIND or of.get("format") != FORMAT:
        raise Mistake(f"{origin}: not a {KIND} of format {FORMAT}. {ADVICE}")
    rows = field(of, "allocations", list, origin)
    trace = Trace(
        source=field(of, "source", str, origin),
        device=field(of, "device", str, origin),
        model=field(of, "model", str, origin),
        rows=of.get("rows"),
        moments=field(of, "moments", int, origin),
        remarks=tuple(Remark(where=one["where"], text=one["text"]) for one in field(of, "remarks", list, origin)),
        allocations=tuple(_allocation(row, f"{origin}: allocations[{place}]") for place, row in enumerate(rows)),
    )
    return (trace,)


def _allocation(row: list[int | str | None], where: str) -> Allocation:
    if not isinstance(row, list) or len(row) != len(COLUMNS):
        raise Mistake(f"{where}: an allocation is a list of {', '.join(COLUMNS)}. Record the trace again.")
    of = dict(zip(COLUMNS, row, strict=True))
    one = Allocation(**of)  # type: ignore[arg-type]
    numbers = (one.requested_bytes, one.allocated_at, one.held_bytes or 0, one.freed_at or 0)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise Mistake(f"{where}: sizes and moments are whole numbers, found {row}. Record the trace again.")
    return one
