"""The first requests to a model on a running server, from its traces: their shapes, and when each was queued.

Tracing is switched on for some seconds. Traces hold neither priorities nor timeouts.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.request_source import EXTRA_REQUESTS, Arrivals, ClosedLoop, RequestSource
from serve.management import traces
from serve.management.api import RestrictedError, ServerError
from serve.management.traces import Trace

# Traces hold every tensor's values, and a tritonserver of release 24.10 that traces every request can die after some
# thousand of them (triton-inference-server/server issue 7795, mended in April 2025).
MOST = 500
# Requests in one file. The server writes no file for the remainder when tracing ends.
REQUESTS_PER_FILE = 5
HOW = (
    "Start it with triton-batching serve, or give tritonserver --trace-config triton,file=/tmp/trace.json "
    "--trace-config level=OFF, and requests can be looked at while it runs."
)


@dataclass(kw_only=True)
class Recording:
    """The traced requests in order of arrival, or the reason why there are none in `missing`.

    `waited` is the time from the first arrival to the first execution. `clients` is the number of clients that each
    wait for an answer before they send again; 0 if the number of requests in the server is not steady.
    """

    requests: list[Request] = field(default_factory=list)
    waited: Time = 0
    clients: int = 0
    missing: str = ""

    def load(self, delay: Time) -> RequestSource:
        """The same load again: from the same number of waiting clients, or at the recorded times.

        `delay` is the batcher's queue delay. Requests that came before tracing began are not known. If the first
        execution came later than `delay`, the server was busy with them. The requests that arrived during that time
        are then in the queue from the start.
        """
        if not self.clients:
            behind = max(0, self.waited - delay)
            return Arrivals([replace(request, at=max(0, request.at - behind)) for request in self.requests])
        kinds = itertools.cycle(self.requests)

        def make(number: int, client: int, at: Time) -> Request:
            kind = next(kinds)
            return Request(number=number, at=at, client=client, rows=kind.rows, shapes=kind.shapes)

        return ClosedLoop(self.clients, len(self.requests) + EXTRA_REQUESTS * self.clients, make)


@contextlib.contextmanager
def recording(
    address: str, model: str, *, batched: bool, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Recording]:
    """Trace the first `MOST` requests to `model` inside the block, and restore the settings after it.

    `address` is the server's HTTP endpoint. `batched` says whether the first axis of the inputs is the batch axis.
    `tell` gets what is done after the block.
    """
    try:
        before = traces.settings(address, model)
    except ServerError as error:
        yield Recording(missing=_refusal(error))
        return
    if before.get("trace_mode") == "opentelemetry":
        yield Recording(
            missing=f"the server sends its traces to {before.get('url')}, and only files of traces can be read here. "
            "Start it without --trace, and requests can be looked at while it runs."
        )
        return
    with _from_files(address, model, tell, batched=batched) as result:
        yield result


def _refusal(error: ServerError) -> str:
    """Why the server does not trace."""
    if isinstance(error, RestrictedError):
        return str(error)
    answer = str(error).rpartition("answered ")[2]
    # Other answers than 400 say more than that it was started without traces.
    why = "it was started without traces" if answer.startswith("400") else answer
    return f"the server does not trace ({why}). {HOW}"


@contextlib.contextmanager
def _tracing(address: str, model: str, changes: Mapping[str, object]) -> Iterator[None]:
    """Change the trace settings of `model` inside the block."""
    before, default = traces.settings(address, model), traces.settings(address)
    traces.change(address, changes, model)
    try:
        yield
    finally:
        restored = {key: None if before[key] == default[key] else before[key] for key in changes}
        traces.change(address, restored, model)


@contextlib.contextmanager
def _from_files(address: str, model: str, tell: Callable[[str], None], *, batched: bool) -> Iterator[Recording]:
    """Let the server write traces to its file inside the block."""
    result = Recording()
    settings = traces.settings(address, model)
    path, earlier = Path(settings["trace_file"]), traces.files(Path(settings["trace_file"]))
    changes = {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "1",
        "trace_count": str(MOST),
        "log_frequency": str(REQUESTS_PER_FILE),
    }
    with contextlib.ExitStack() as tracing:
        try:
            tracing.enter_context(_tracing(address, model, changes))
        except ServerError as error:
            result.missing = _refusal(error)
        yield result
    if result.missing:
        return
    changed = [file for file, stamp in traces.files(path).items() if earlier.get(file) != stamp]
    tell(f"reading {len(changed)} files of traces")
    recorded = [trace for file in changed for trace in _readable(file)]
    if settings["trace_level"] == ["OFF"]:
        _remove(set(changed) - earlier.keys())
    result.requests, result.waited, spans = requests_of(recorded, model, batched=batched)
    result.clients = clients(spans)
    if not result.requests:
        result.missing = (
            f"the server writes its traces to {path}, {REQUESTS_PER_FILE} requests to a file, and there is no new file "
            "on this machine. Run this on the server's machine, for as long as that many requests take."
        )


def _remove(files: Iterable[Path]) -> None:
    """Remove files that hold requests of this time alone, with every tensor's values."""
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _readable(file: Path) -> list[Trace]:
    """The traces of a file; none if another user's server wrote it."""
    try:
        return traces.read_file(file)
    except OSError:
        return []


def requests_of(
    recorded: Sequence[Trace], model: str, *, batched: bool
) -> tuple[list[Request], Time, list[tuple[int, int]]]:
    """The complete requests to `model`, in order of arrival.

    Returns the requests, the time from the first arrival to the first execution (ns), and for each request the times
    (ns) at which it came to the server and left it.
    """
    ours = [
        trace for trace in recorded if trace.model == model and {"QUEUE_START", "REQUEST_END"} <= trace.moments.keys()
    ]
    ours.sort(key=lambda trace: trace.moments["QUEUE_START"])
    begin = ours[0].moments["QUEUE_START"] if ours else 0
    executed = [trace.moments["COMPUTE_START"] - begin for trace in ours if "COMPUTE_START" in trace.moments]
    requests = [
        Request(
            number=number,
            at=trace.moments["QUEUE_START"] - begin,
            rows=next(iter(trace.shapes.values()), (1,))[0] if batched else 1,
            shapes={name: shape[1:] if batched else shape for name, shape in trace.shapes.items()},
        )
        for number, trace in enumerate(ours, 1)
    ]
    spans = [(trace.moments["REQUEST_START"], trace.moments["REQUEST_END"]) for trace in ours]
    return requests, min(executed, default=0), spans


def clients(spans: Sequence[tuple[int, int]]) -> int:
    """The number of clients that wait for an answer before they send again; 0 if the load is of another kind.

    `spans` are the times at which each request came and left. With such clients the number of requests in the server
    hardly changes. It may be a little too low, because a client has no request there for a moment after each answer.
    Only the time from the first end to the last start counts: outside it, requests that were not traced were there too.
    """
    events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    if len(spans) < 10:
        return 0
    first, last = min(end for _, end in spans), max(start for start, _ in spans)
    durations: Counter[int] = Counter()
    inside = 0
    for (at, step), (following, _) in itertools.pairwise(events):
        inside += step
        durations[inside] += max(0, min(following, last) - max(at, first))
    durations = +durations  # without levels that lasted no time
    if not durations:
        return 0
    most = max(durations)
    full = sum(time for level, time in durations.items() if level > most / 2)
    return most if full >= 0.8 * durations.total() else 0
