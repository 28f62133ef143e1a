"""PyTorch's CUDA memory snapshots, the pickles of `torch.cuda.memory._dump_snapshot`; torch is not needed."""

from pathlib import Path
from typing import Any

from perf.studies.memory_lab.traces import plain_pickle
from perf.studies.memory_lab.traces.fields import field
from perf.studies.memory_lab.traces.ledger import Ledger
from perf.studies.memory_lab.traces.trace import Trace
from triton_batching.terminal import Mistake

SOURCE = "torch cuda snapshot"
ADVICE = "Record with torch.cuda.memory._record_memory_history(), then torch.cuda.memory._dump_snapshot(FILE)."
# Calls of the allocator to the driver, and marks; they are no requests of the program.
IGNORED = {"segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "free_requested", "oom"}


def parse(data: bytes, origin: str = "snapshot") -> tuple[Trace, ...]:
    """The traces of `device_traces`: a buffer lives from `alloc` to `free_completed` of its address.

    There is one trace per device with events. The recorder drops its oldest events, so there may be releases without an
    allocation. `held_bytes` comes from the final segments, so only buffers that are live at the end have it. Raises
    `Mistake`, for a broken pickle with the byte position.
    """
    snapshot = plain_pickle.loads(data, origin)
    devices = field(snapshot, "device_traces", list, origin)
    held = _held(snapshot)
    traces = []
    for device, events in enumerate(devices):
        if not isinstance(events, list):
            raise Mistake(f"{origin}: device_traces[{device}] should be a list, is {type(events).__name__}.")
        if events:
            traces.append(_trace(events, device, held, f"{origin}: device_traces[{device}]"))
    if not traces:
        raise Mistake(f"{origin}: no device has events, only its final state. {ADVICE}")
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
            ledger.remark(where, f"unknown action '{action}' is left out")
    return ledger.trace()


def _held(snapshot: Any) -> dict[int, int]:
    """Bytes of each block in use at the end, by address."""
    sizes = {}
    for segment in snapshot.get("segments") or ():
        for block in segment.get("blocks") or ():
            if block.get("state") == "active_allocated" and isinstance(block.get("address"), int):
                sizes[block["address"]] = int(block["size"])
    return sizes


def _frame(event: dict[str, Any]) -> str:
    """The innermost Python frame; empty if no frames were recorded."""
    for frame in event.get("frames") or ():
        if isinstance(frame, dict) and str(frame.get("filename", "")).endswith(".py"):
            return f"{Path(str(frame['filename'])).name}:{frame.get('line')} {frame.get('name')}"
    return ""
