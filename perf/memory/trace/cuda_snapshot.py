"""PyTorch's CUDA memory snapshots, as `torch.cuda.memory._dump_snapshot` pickles them (torch is not needed here)."""

from pathlib import Path
from typing import Any

from perf.memory.trace import plain_pickle
from perf.memory.trace.fields import content, field
from perf.memory.trace.ledger import Ledger
from perf.memory.trace.trace import Trace
from triton_batching.terminal import Mistake

SOURCE = "torch cuda snapshot"
ADVICE = "Record with torch.cuda.memory._record_memory_history(), then torch.cuda.memory._dump_snapshot(FILE)."
# What the allocator asks of the driver, and marks: no request of the program.
IGNORED = {"segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "free_requested", "oom"}


def read(path: Path) -> tuple[Trace, ...]:
    """One trace per device that has events; raises `Mistake`, for a broken pickle with the byte."""
    return parse(content(path, ADVICE), str(path))


def parse(data: bytes, origin: str = "snapshot") -> tuple[Trace, ...]:
    """Traces of `device_traces`: `alloc` by its address, until `free_completed` of that address.

    What the recorder cut off at its front shows as releases without an allocation; `held_bytes` come from the segments
    at the end, for what still lives then.
    """
    snapshot = plain_pickle.loads(data, origin)
    devices = field(snapshot, "device_traces", list, origin)
    held = _held(snapshot)
    traces = []
    for device, events in enumerate(devices):
        if not isinstance(events, list):
            raise Mistake(f"{origin}: device_traces[{device}] should be a list, found {type(events).__name__}.")
        if events:
            traces.append(_trace(events, device, held, f"{origin}: device_traces[{device}]"))
    if not traces:
        raise Mistake(f"{origin}: no device has events, only the state at the end. {ADVICE}")
    return tuple(traces)


def _trace(events: list[Any], device: int, held: dict[int, int], origin: str) -> Trace:
    ledger = Ledger(SOURCE, f"cuda:{device}")
    for number, event in enumerate(events):
        where = f"event {number}"
        action = field(event, "action", str, f"{origin}[{number}]")
        if action in IGNORED:
            continue
        address = field(event, "addr", int, f"{origin}[{number}]")
        if action == "alloc":
            size = field(event, "size", int, f"{origin}[{number}]")
            ledger.allocate(address, size, where=where, held=held.get(address), name=_frame(event))
        elif action == "free_completed":
            ledger.free(address, where=where)
        else:
            ledger.remark(where, f"action '{action}' is not known and is left out")
    return ledger.trace()


def _held(snapshot: Any) -> dict[int, int]:
    """Bytes of every block that is in use at the end, by its address."""
    found = {}
    for segment in snapshot.get("segments") or ():
        for block in segment.get("blocks") or ():
            if block.get("state") == "active_allocated" and isinstance(block.get("address"), int):
                found[block["address"]] = int(block["size"])
    return found


def _frame(event: dict[str, Any]) -> str:
    """The innermost Python frame, where frames were recorded."""
    for frame in event.get("frames") or ():
        if isinstance(frame, dict) and str(frame.get("filename", "")).endswith(".py"):
            return f"{Path(str(frame['filename'])).name}:{frame.get('line')} {frame.get('name')}"
    return ""
