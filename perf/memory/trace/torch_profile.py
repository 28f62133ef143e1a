"""Memory events of `torch.profiler` (`profile_memory=True`), as `export_chrome_trace` writes them."""

from pathlib import Path
from typing import Any

from perf.memory.trace.fields import content, field
from perf.memory.trace.json_text import parsed
from perf.memory.trace.ledger import Ledger
from perf.memory.trace.trace import Trace
from triton_batching.terminal import Mistake

SOURCE = "torch profile"
ADVICE = "Record with torch.profiler.profile(profile_memory=True) and write with export_chrome_trace(FILE)."
# c10::DeviceType.
DEVICES = {0: "cpu", 1: "cuda"}


def read(path: Path) -> tuple[Trace, ...]:
    """One trace per device; raises `Mistake`, for broken JSON with line and column."""
    return parse(content(path, ADVICE), str(path))


def parse(data: bytes, origin: str = "profile") -> tuple[Trace, ...]:
    """Traces of the `[memory]` events in the order of their time: `Bytes` above 0 allocate at `Addr`, below 0 free."""
    events = field(parsed(data, origin), "traceEvents", list, origin)
    found = [
        (place, one) for place, one in enumerate(events) if isinstance(one, dict) and one.get("name") == "[memory]"
    ]
    if not found:
        raise Mistake(f"{origin}: none of {len(events)} events is a [memory] event. {ADVICE}")
    ledgers: dict[str, Ledger] = {}
    # The sort is stable: events of one microsecond stay in the order of the file.
    for place, event in sorted(found, key=lambda one: float(one[1].get("ts", 0))):
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
