"""A server's traces: its flags, its settings at run time, and its files of sampled requests.

tritonserver writes traces only if it was started with `--trace-config triton,file=PATH`. The level can be changed while
it runs, the file cannot.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve.management import api

FLUSHED_EVERY = 20


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One request: nanoseconds of the server's monotonic clock by moment, such as REQUEST_START or COMPUTE_END.

    `shapes` are those of its inputs, with the batch axis. They are empty if the level TENSORS is off.
    """

    model: str
    request_id: str = ""
    moments: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def between_ns(self, first: str, last: str) -> int | None:
        """Nanoseconds from one moment to another; None if the trace lacks one of them."""
        if first not in self.moments or last not in self.moments:
            return None
        return self.moments[last] - self.moments[first]


def arguments(path: Path, rate: int) -> tuple[str, ...]:
    """tritonserver's flags to write a trace of every `rate`-th request to files whose names begin with `path`."""
    settings = ("triton,file=" + str(path), f"rate={rate}", "level=TIMESTAMPS", "count=-1")
    # Numbered files of a few traces each: a single file would be complete only after a regular end of the server.
    return tuple(f"--trace-config={setting}" for setting in (*settings, f"triton,log-frequency={FLUSHED_EVERY}"))


def switchable(path: Path) -> tuple[str, ...]:
    """tritonserver's flags to trace nothing until `change` sets a level, then to files that begin with `path`."""
    return f"--trace-config=triton,file={path}", "--trace-config=level=OFF"


def telemetry(url: str, rate: int) -> tuple[str, ...]:
    """tritonserver's flags to send OpenTelemetry's spans of every `rate`-th request to `url`, as OTLP over HTTP.

    Every request with a `traceparent` is traced, too.
    """
    settings = ("mode=opentelemetry", f"opentelemetry,url={url}", f"rate={rate}", "level=TIMESTAMPS", "count=-1")
    return tuple(f"--trace-config={setting}" for setting in (*settings, "opentelemetry,bsp_schedule_delay=1000"))


def start(address: str, rate: int) -> None:
    """Trace every `rate`-th request on the server at `address` (HTTP) from now on; raises `ServerError`."""
    change(address, {"trace_level": ["TIMESTAMPS"], "trace_rate": str(rate)})


def stop(address: str) -> None:
    """End tracing, so that the server writes the traces that it still has; a server that has ended is no error."""
    try:
        change(address, {"trace_level": ["OFF"]})
    except api.ServerError:
        return


def settings(address: str, model: str = "") -> dict[str, Any]:
    """The trace settings of a model, or the server's own without one; raises `ServerError`."""
    answer: dict[str, Any] = api.call(address, _path(model))
    return answer


def change(address: str, changes: Mapping[str, Any], model: str = "") -> None:
    """Change trace settings of a model, or the server's own; None is the server's own value. Raises `ServerError`."""
    api.call(address, _path(model), changes)


def files(path: Path) -> dict[Path, int]:
    """The trace files whose names begin with `path`, and when each was changed (ns, clock of the file system)."""
    return {file: file.stat().st_mtime_ns for file in sorted(path.parent.glob(f"{path.name}*"))}


def read(path: Path) -> list[Trace]:
    """All complete traces of the files whose names begin with `path`."""
    return [trace for file in files(path) for trace in read_file(file)]


def read_file(file: Path) -> list[Trace]:
    """The complete traces of one file; a file that is still being written ends within one."""
    models: dict[int, Mapping[str, Any]] = {}
    moments: dict[int, dict[str, int]] = defaultdict(dict)
    shapes: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for entry in _entries(file.read_text(errors="replace")):
        number = entry.get("id", -1)
        if "model_name" in entry:
            models[number] = entry
        for stamp in entry.get("timestamps", ()):
            moments[number][stamp["name"]] = stamp["ns"]
        if entry.get("activity") == "TENSOR_QUEUE_INPUT":
            tensor = entry["tensor"]
            shapes[number][tensor["name"]] = tuple(int(dim) for dim in tensor["shape"].split(",") if dim)
    return [
        Trace(
            model=entry["model_name"],
            request_id=entry.get("request_id", ""),
            moments=moments[number],
            shapes=shapes[number],
        )
        for number, entry in models.items()
    ]


def _entries(text: str) -> Iterator[dict[str, Any]]:
    """The complete objects of a JSON list whose end may be missing."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            entry, end = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield entry
        at = text.find("{", end)


def _path(model: str) -> str:
    return f"models/{model}/trace/setting" if model else "trace/setting"
