"""The stages of a request: where its time goes, each stage from a source of its own, and whether they add up.

The client's stages are means over all requests by the client's clock. Queue, gather and run are the server's counters
over all requests of the window; Triton charges each request of a batch the whole execution, which is what each waits
for. Split and network are means over the requests that the server traced. Only durations are subtracted, so no two
clocks need to agree. The sum is a real check: it fails if the traced requests are unlike the others, if other clients'
requests are in the counters, or if time passes that no stage covers.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perf.load.timings import Timings, request_id
from perf.records.load_record import REMAINDER, Stage, Stages
from serve.management.statistics import Counters
from serve.management.traces import Trace

NAMES = ("late send", "client write", "network", "queue", "batch gather", "run", "split", "copy back")
# The first and last moment of each stage, on the client's clock and on the server's.
_OUTSIDE = {
    "late send": ("due", "called"),
    "client write": ("called", "written"),
    "network": ("written", "received"),
    "copy back": ("received", "done"),
}
_INSIDE = {
    "queue": ("QUEUE_START", "COMPUTE_START"),
    "batch gather": ("COMPUTE_START", "COMPUTE_INPUT_END"),
    "run": ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    "split": ("COMPUTE_OUTPUT_START", "INFER_RESPONSE_COMPLETE"),
}
# Where the server's counters are missing.
BETWEEN = "network and server"
CLIENT, COUNTERS, TRACES = "client clock", "server counters", "server traces"


def stages(timings: Timings, counted: Counters | None, traces: Sequence[Trace]) -> Stages:
    """The stages of the answered requests of a window.

    Without traces the network is the remainder of the others, and without `counted` it is one stage with the server.
    """
    answered = len(timings)
    latency_us = _mean_us(timings["done"] - timings["due"])

    def client(name: str, first: str, last: str) -> Stage:
        return Stage(name=name, mean_us=_mean_us(timings[last] - timings[first]), source=CLIENT, sample=answered)

    late = client("late send", "due", "called")
    before = [late] if late.mean_us else []
    write, copy_back = client("client write", "called", "written"), client("copy back", "received", "done")
    if counted is None:
        between = replace(client(BETWEEN, "written", "received"), source=REMAINDER)
        return Stages(parts=(*before, write, between, copy_back), latency_us=latency_us)

    def server(name: str, total_ns: int) -> Stage:
        return Stage(name=name, mean_us=counted.per_request_us(total_ns), source=COUNTERS, sample=counted.requests)

    measured = [
        server("queue", counted.queue_ns),
        server("batch gather", counted.compute_input_ns),
        server("run", counted.compute_infer_ns),
    ]
    split, network = _traced(timings, traces)
    if split is None or network is None:
        split = server("split", counted.compute_output_ns)
        others = [*before, write, *measured, split, copy_back]
        left = latency_us - sum(part.mean_us for part in others)
        network = Stage(name="network", mean_us=left, source=REMAINDER, sample=answered)
    return Stages(parts=(*before, write, network, *measured, split, copy_back), latency_us=latency_us)


def _traced(timings: Timings, traces: Sequence[Trace]) -> tuple[Stage | None, Stage | None]:
    """Split and network, which need traces; None without any."""
    stages_us = _by_request(timings, traces)
    if not stages_us:
        return None, None
    split, network = (
        Stage(name=name, mean_us=float(np.mean(stages_us[name])), source=TRACES, sample=len(stages_us[name]))
        for name in ("split", "network")
    )
    return split, network


def _by_request(timings: Timings, traces: Sequence[Trace]) -> dict[str, tuple[float, ...]]:
    """Microseconds of each stage of each traced request, all in the same order; empty if none was traced.

    They add up to the latency of the request. Split lasts from the end of the run until the response of this request is
    complete; others of its batch may follow. Network is the client's wait less the time from the start of the queue to
    that response: both ways through the sockets and the server's endpoint.
    """
    rows = {request_id(int(row["worker"]), int(row["number"])): row for row in timings}
    requests: list[dict[str, float]] = []
    for trace in traces:
        row = rows.get(trace.request_id)
        inside = {name: trace.between_ns(first, last) for name, (first, last) in _INSIDE.items()}
        if row is None or None in inside.values():
            continue
        ns = {name: value for name, value in inside.items() if value is not None}
        outside = {name: int(row[last]) - int(row[first]) for name, (first, last) in _OUTSIDE.items()}
        outside["network"] -= sum(ns.values())
        requests.append({name: value / 1e3 for name, value in {**outside, **ns}.items()})
    return {name: tuple(stage_us[name] for stage_us in requests) for name in NAMES} if requests else {}


def _mean_us(ns: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> float:
    return float(np.mean(ns)) / 1e3 if len(ns) else 0.0
