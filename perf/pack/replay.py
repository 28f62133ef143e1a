"""A simulation of a placement, event by event: requests arrive, and the models of a device take turns.

A device is never idle while a request waits: the next model in turn executes its waiting requests, at most its batch.
Triton does the same with `packed.pbtxt` and --rate-limit=execution_count. No cycle is longer than planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.pack.placement import Node, Placement, Share
from perf.pack.validator import between, of, slowdown
from perf.pack.workload import Workload
from triton_batching.terminal import Mistake

# Requests of the least called model on a device; the others get as many as arrive in the same time.
REQUESTS = 2000
MAX_REQUESTS = 200_000
SHARE_IN_TIME = 0.99


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One model on one device: its `requests`, the `late` ones, and the 99th percentile including the overhead."""

    device: int
    model: str
    requests: int
    late: int
    p99_ms: float

    @property
    def in_time(self) -> bool:
        """Whether 99 % of the requests were in time."""
        return self.late <= (1 - SHARE_IN_TIME) * self.requests


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The requests of one model on a device: ascending `arrivals` in ms, and execution `times` in ms by rows."""

    arrivals: NDArray[np.float64]
    times: Sequence[float]

    @property
    def batch(self) -> int:
        """The largest batch size."""
        return len(self.times) - 1


def replay(
    workload: Workload, placement: Placement, *, scale: float = 1.0, seed: int = 0, requests: int = REQUESTS
) -> list[Replayed]:
    """Simulate all devices at `scale` times their planned rates, with the workload's kind of arrivals."""
    random = np.random.default_rng(seed)
    results = []
    for number, node in enumerate(placement.nodes):
        streams = [_stream(workload, node, share, scale, requests, random) for share in node.shares]
        groups = [[stream] for stream in streams] if node.together else [streams]
        answers = [times for group in groups for times in serve(group)]
        for share, stream, answered in zip(node.shares, streams, answers, strict=True):
            model = of(workload, share.model)
            latencies = answered - stream.arrivals + model.overhead_ms
            late = int(np.sum(latencies > model.target_ms * (1 + 1e-9)))
            p99 = float(np.quantile(latencies, SHARE_IN_TIME, method="higher"))
            count = len(answered)
            results.append(Replayed(device=number, model=share.model, requests=count, late=late, p99_ms=p99))
    return results


def serve(streams: Sequence[Stream]) -> list[NDArray[np.float64]]:
    """The times in ms at which each request of each stream is answered by one device that serves them in turn."""
    ends = [np.empty(len(stream.arrivals)) for stream in streams]
    position = [0] * len(streams)
    now, turn = 0.0, -1
    left = sum(len(stream.arrivals) for stream in streams)
    while left:
        chosen = None
        for step in range(1, len(streams) + 1):
            at = (turn + step) % len(streams)
            if position[at] < len(streams[at].arrivals) and streams[at].arrivals[position[at]] <= now:
                chosen = at
                break
        if chosen is None:
            next_positions = zip(streams, position, strict=True)
            now = min(stream.arrivals[at] for stream, at in next_positions if at < len(stream.arrivals))
            continue
        stream, first = streams[chosen], position[chosen]
        rows = int(np.searchsorted(stream.arrivals[first : first + stream.batch], now, side="right"))
        now += stream.times[rows]
        ends[chosen][first : first + rows] = now
        position[chosen], turn = first + rows, chosen
        left -= rows
    return ends


def _stream(
    workload: Workload, node: Node, share: Share, scale: float, requests: int, random: np.random.Generator
) -> Stream:
    slowest = min(other.rate_per_s for other in node.shares)
    total = sum(other.rate_per_s for other in node.shares)
    count = int(min(requests / slowest, MAX_REQUESTS / total) * share.rate_per_s) + 1
    gap = 1e3 / (share.rate_per_s * scale)
    if workload.arrivals == "uniform":
        arrivals = (np.arange(count) + random.random()) * gap
    elif workload.arrivals == "poisson":
        arrivals = np.cumsum(random.exponential(gap, count))
    else:
        raise Mistake(f"unknown arrivals {workload.arrivals}. Write uniform or poisson.")
    model, factor = of(workload, share.model), slowdown(workload, node, share.model)
    times = [between(model.latency.sizes, model.latency.values, rows) * factor for rows in range(share.batch + 1)]
    return Stream(arrivals=arrivals, times=times)
