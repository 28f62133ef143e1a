"""Where a request's time goes, part by part, each from a source of its own, and whether the parts make up the whole.

Client parts are means over all requests by the client's clock. Queue, gather and run are the server's own counters over
all requests of the window (Triton charges each request of a batch with the whole execution, which is what each waits
for). Split and network need one clock reading per request: they are means over the requests that the server traced,
and only lengths of time are subtracted, never one machine's clock from another's. So the sum can fail: when the traced
requests are unlike the others, when others' requests are in the counters, or when time passes that no part covers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clients.counters import Counters
from clients.fleet.timings import Timings, request_id
from clients.fleet.traces import Trace

TOLERANCE = 0.05
CLIENT, COUNTERS, TRACES, REMAINDER = "client clock", "server counters", "server traces", "remainder"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of the mean latency; `sample` requests were looked at."""

    name: str
    mean_us: float
    source: str
    sample: int


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All parts in the order in which a request passes them; `latency_us` is the mean that the clients saw."""

    parts: tuple[Stage, ...]
    latency_us: float

    @property
    def sum_us(self) -> float:
        """What the parts make together."""
        return sum(part.mean_us for part in self.parts)

    @property
    def error(self) -> float | None:
        """Sum over latency, minus 1; None when one part is only what the others left over."""
        if not self.latency_us or any(part.source == REMAINDER for part in self.parts):
            return None
        return self.sum_us / self.latency_us - 1

    @property
    def holds(self) -> bool | None:
        """Whether the sum is within 5 % of the latency; None when it was not checked."""
        return None if self.error is None else abs(self.error) <= TOLERANCE


def stages(timings: Timings, counted: Counters, traces: Sequence[Trace]) -> Stages:
    """The parts for answered requests of the window; without traces the network is what the others leave over."""
    answered = len(timings)
    latency_us = _mean_us(timings["done"] - timings["due"])

    def client(name: str, first: str, last: str) -> Stage:
        return Stage(name=name, mean_us=_mean_us(timings[last] - timings[first]), source=CLIENT, sample=answered)

    def server(name: str, total_ns: int) -> Stage:
        return Stage(name=name, mean_us=counted.per_request_us(total_ns), source=COUNTERS, sample=counted.requests)

    late = client("late send", "due", "called")
    before = [late] if late.mean_us else []
    write, copy_back = client("client write", "called", "written"), client("copy back", "received", "done")
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
    """Split: from the end of the run until this request's own response is complete; others of its batch may follow.

    Network: what the client waited for the answer, less the time from the queue's start to that response: both ways
    through the socket and the server's endpoint.
    """
    waits = {
        request_id(int(worker), int(number)): int(received - written)
        for worker, number, written, received in zip(
            timings["worker"], timings["number"], timings["written"], timings["received"], strict=True
        )
    }
    splits, networks = [], []
    for trace in traces:
        inside = trace.between_ns("QUEUE_START", "INFER_RESPONSE_COMPLETE")
        split = trace.between_ns("COMPUTE_OUTPUT_START", "INFER_RESPONSE_COMPLETE")
        if trace.request_id in waits and inside is not None and split is not None:
            networks.append(waits[trace.request_id] - inside)
            splits.append(split)
    if not networks:
        return None, None
    return tuple(  # type: ignore[return-value]
        Stage(name=name, mean_us=float(np.mean(values)) / 1e3, source=TRACES, sample=len(values))
        for name, values in (("split", splits), ("network", networks))
    )


def _mean_us(ns: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> float:
    return float(np.mean(ns)) / 1e3 if len(ns) else 0.0
