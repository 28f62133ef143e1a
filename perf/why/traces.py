"""The server's own traces: what each request's shapes were and when it was queued, switched on for some seconds.

tritonserver writes them only where it was started with `--trace-config triton,file=PATH --trace-config level=OFF`; then
the level can be changed at run time (the file cannot). They hold neither priorities nor timeouts.
"""

import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perf.batcher.load import EXTRA_REQUESTS, Arrivals, ClosedLoop, RequestSource
from perf.batcher.request import Request, Time
from perf.why.sampled import RestrictedError, ServerError, call

# Traces hold every tensor's values, and a tritonserver of release 24.10 that traces every request can die after some
# thousand of them (triton-inference-server/server issue 7795, mended in April 2025).
MOST = 500
# A file for so many: those left over when tracing ends are not written to one.
EACH = 5
HOW = (
    "Start the server with --trace-config triton,file=/tmp/trace.json --trace-config level=OFF (after -- with "
    "python -m serve), and requests can be looked at while it runs."
)


@dataclass(kw_only=True)
class Recording:
    """What was traced: requests in order of arrival, or the reason why there are none.

    `waited` is the time until the first execution of one of them. `clients` is 0 where no steady number of them waits.
    """

    requests: list[Request] = field(default_factory=list)
    waited: Time = 0
    clients: int = 0
    missing: str = ""

    def load(self, delay: Time) -> RequestSource:
        """What came, again: as from the same number of waiting clients where that is what it was, else at its times.

        Requests that came before tracing began are not known. While those were executed others came, and waited longer
        than the batcher's `delay` makes them: they are there from the start, as at the first execution that is known.
        """
        if not self.clients:
            behind = max(0, self.waited - delay)
            return Arrivals([replace(one, at=max(0, one.at - behind)) for one in self.requests])
        kinds = itertools.cycle(self.requests)

        def make(number: int, client: int, at: Time) -> Request:
            kind = next(kinds)
            return Request(number=number, at=at, client=client, rows=kind.rows, shapes=kind.shapes)

        return ClosedLoop(self.clients, len(self.requests) + EXTRA_REQUESTS * self.clients, make)


@contextlib.contextmanager
def recording(url: str, model: str, *, batched: bool) -> Iterator[Recording]:
    """Trace the first `MOST` requests to `model` inside the block; the settings are as before after it."""
    found, address = Recording(), f"{url}/v2/models/{model}/trace/setting"
    try:
        before = call(address)
        default = call(f"{url}/v2/trace/setting")
        now = {
            "trace_level": ["TIMESTAMPS", "TENSORS"],
            "trace_rate": "1",
            "trace_count": str(MOST),
            "log_frequency": str(EACH),
        }
        if "trace_file" in before:  # not where traces go to OpenTelemetry
            path = Path(before["trace_file"])
            earlier = _written(path)
            call(address, now)
        else:
            found.missing = f"the server traces, but not to a file. {HOW}"
    except RestrictedError as error:
        found.missing = str(error)
    except ServerError as error:
        found.missing = f"the server does not trace ({str(error).rpartition('answered ')[2]}). {HOW}"
    if found.missing:
        yield found
        return
    try:
        yield found
    finally:
        call(address, {key: None if before[key] == default[key] else before[key] for key in now})
    _fill(found, [one for one, stamp in _written(path).items() if earlier.get(one) != stamp], model, batched=batched)
    if not found.requests:
        found.missing = (
            f"the server writes its traces to {path}, {EACH} requests to a file, and none is here. Run this on its "
            "machine, for as long as that many requests take."
        )


def _written(path: Path) -> dict[Path, int]:
    """The trace files there are, and when each was changed: by its own clock, which need not be this machine's."""
    return {one: one.stat().st_mtime_ns for one in path.parent.glob(f"{path.name}.*")}


def _fill(found: Recording, files: list[Path], model: str, *, batched: bool) -> None:
    entries = []
    for one in files:
        try:
            entries += json.loads(one.read_text())
        except (OSError, ValueError):
            continue  # another trace's file, or one still being written
    found.requests, found.waited, spans = read_traces(entries, model, batched=batched)
    found.clients = clients(spans)


def read_traces(
    entries: list[dict[str, Any]], model: str, *, batched: bool
) -> tuple[list[Request], Time, list[tuple[int, int]]]:
    """Requests to `model` in order of arrival, how long after the first one of them was first executed, and from when
    to when each was in the server (ns)."""
    names: dict[int, str] = {}
    times: dict[int, dict[str, int]] = defaultdict(dict)
    shapes: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for entry in entries:
        number = entry["id"]
        if "model_name" in entry:
            names[number] = entry["model_name"]
        for stamp in entry.get("timestamps", ()):
            times[number][stamp["name"]] = stamp["ns"]
        if entry.get("activity") == "TENSOR_QUEUE_INPUT":
            tensor = entry["tensor"]
            shapes[number][tensor["name"]] = tuple(int(dim) for dim in tensor["shape"].split(",") if dim)
    ours = [n for n, name in names.items() if name == model and {"QUEUE_START", "REQUEST_END"} <= times[n].keys()]
    ours.sort(key=lambda n: times[n]["QUEUE_START"])
    begin = times[ours[0]]["QUEUE_START"] if ours else 0
    waited = min((times[n]["COMPUTE_START"] - begin for n in ours if "COMPUTE_START" in times[n]), default=0)
    requests = [
        Request(
            number=index,
            at=times[n]["QUEUE_START"] - begin,
            rows=next(iter(shapes[n].values()), (1,))[0] if batched else 1,
            shapes={name: shape[1:] if batched else shape for name, shape in shapes[n].items()},
        )
        for index, n in enumerate(ours, 1)
    ]
    return requests, waited, [(times[n]["REQUEST_START"], times[n]["REQUEST_END"]) for n in ours]


def clients(spans: list[tuple[int, int]]) -> int:
    """The number of requests in the server, where it hardly changes, as with clients that wait for answers; else 0.

    Those that were there when tracing began, and that came after it ended, are not in `spans`: counted is from the
    first end to the last start. Clients are out of the server for a moment between two requests, so the number may be a
    little lower.
    """
    events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    if len(spans) < 10:
        return 0
    first, last = min(end for _, end in spans), max(start for start, _ in spans)
    share: Counter[int] = Counter()
    inside = 0
    for (at, step), (following, _) in itertools.pairwise(events):
        inside += step
        share[inside] += max(0, min(following, last) - max(at, first))
    share = +share  # levels of no time at all are none
    if not share:
        return 0
    most = max(share)
    full = sum(time for level, time in share.items() if level > most / 2)
    return most if full >= 0.8 * share.total() else 0
