"""The memory events of a chrome trace of `torch.profiler` (`profile_memory=True`)."""

from typing import Any

from perf.studies.memory_lab.traces.fields import field, parsed
from perf.studies.memory_lab.traces.ledger import Ledger
from perf.studies.memory_lab.traces.trace import Trace
from triton_batching.terminal import Mistake

SOURCE = "torch profile"
ADVICE = "Record with torch.profiler.profile(profile_memory=True) and write with export_chrome_trace(FILE)."
# c10::DeviceType.
DEVICES = {0: "cpu", 1: "cuda"}


def parse(data: bytes, origin: str = "profile") -> tuple[Trace, ...]:
    """The traces of the `[memory]` events in order of time, one per device; raises `Mistake` with line and column.

    An event allocates at `Addr` if its `Bytes` are above 0 and frees otherwise.
    """
    events = field(parsed(data, origin), "traceEvents", list, origin)
    memory_events = [
        (place, event)
        for place, event in enumerate(events)
        if isinstance(event, dict) and event.get("name") == "[memory]"
    ]
    if not memory_events:
        raise Mistake(f"{origin}: none of {len(events)} events is a [memory] event. {ADVICE}")
    ledgers: dict[str, Ledger] = {}
    # The sort is stable: events of one microsecond stay in the order of the file.
    for place, event in sorted(memory_events, key=lambda item: float(item[1].get("ts", 0))):
        where = f"traceEvents[{place}]"
        values = field(event, "args", dict, f"{origin}: {where}")
        device = _device(values)
        ledger = ledgers.setdefault(device, Ledger(SOURCE, device))
        address = field(values, "Addr", int, f"{origin}: {where}")
        size = field(values, "Bytes", int, f"{origin}: {where}")
        if size > 0:
            ledger.allocate(address, size, where=where)
        else:
            ledger.free(address, where=where)
    return tuple(ledger.trace() for ledger in ledgers.values())


def _device(values: dict[str, Any]) -> str:
    kind = values.get("Device Type", 0)
    name = DEVICES.get(kind, f"device type {kind}")
    number = values.get("Device Id", -1)
    return name if number < 0 else f"{name}:{number}"
