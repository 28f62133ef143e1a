"""A placement at work, simulated event by event: requests come, models take turns on their device, some are late.

The device is never idle while a request waits: whoever is next in turn executes what waits for it, at most its batch.
That is what Triton does with `packed.pbtxt` under --rate-limit=execution_count, and no cycle gets longer than planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.pack.placement import Node, Placement, Share
from perf.pack.validator import between, of, slowdown
from perf.pack.workload import Workload
from triton_batching.terminal import Mistake

# Of each model on each device; of a model that is called more often, as many as come in the same time.
REQUESTS = 2000
MOST = 200_000
SHARE_IN_TIME = 0.99


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One model on one device: `requests` that came, `late` of them, and the 99th percentile with the overhead in."""

    device: int
    model: str
    requests: int
    late: int
    p99_ms: float

    @property
    def kept(self) -> bool:
        """Whether 99 % were in time."""
        return self.late <= (1 - SHARE_IN_TIME) * self.requests


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One model's requests on a device: when they come, in ms, rising, and what executions take, by their rows."""

    come: NDArray[np.float64]
    times: Sequence[float]

    @property
    def batch(self) -> int:
        """Most rows of an execution."""
        return len(self.times) - 1


def replay(
    workload: Workload, placement: Placement, *, scale: float = 1.0, seed: int = 0, requests: int = REQUESTS
) -> list[Replayed]:
    """Every device at `scale` times its planned rates; the arrivals are those of the workload."""
    random = np.random.default_rng(seed)
    found = []
    for number, node in enumerate(placement.nodes):
        streams = [_stream(workload, node, share, scale, requests, random) for share in node.shares]
        groups = [[one] for one in streams] if node.together else [streams]
        ended = [times for group in groups for times in serve(group)]
        for share, stream, done in zip(node.shares, streams, ended, strict=True):
            model = of(workload, share.model)
            latencies = done - stream.come + model.overhead_ms
            late = int(np.sum(latencies > model.sla_ms * (1 + 1e-9)))
            p99 = float(np.quantile(latencies, SHARE_IN_TIME, method="higher"))
            found.append(Replayed(device=number, model=share.model, requests=len(done), late=late, p99_ms=p99))
    return found


def serve(streams: Sequence[Stream]) -> list[NDArray[np.float64]]:
    """When each request of each stream is answered, on one device that goes round the streams."""
    ends = [np.empty(len(one.come)) for one in streams]
    position = [0] * len(streams)
    now, turn = 0.0, -1
    left = sum(len(one.come) for one in streams)
    while left:
        chosen = None
        for step in range(1, len(streams) + 1):
            at = (turn + step) % len(streams)
            if position[at] < len(streams[at].come) and streams[at].come[position[at]] <= now:
                chosen = at
                break
        if chosen is None:
            now = min(one.come[position[at]] for at, one in enumerate(streams) if position[at] < len(one.come))
            continue
        stream, first = streams[chosen], position[chosen]
        rows = int(np.searchsorted(stream.come[first : first + stream.batch], now, side="right"))
        now += stream.times[rows]
        ends[chosen][first : first + rows] = now
        position[chosen], turn = first + rows, chosen
        left -= rows
    return ends


def _stream(
    workload: Workload, node: Node, share: Share, scale: float, requests: int, random: np.random.Generator
) -> Stream:
    slowest = min(one.rate_per_s for one in node.shares)
    total = sum(one.rate_per_s for one in node.shares)
    count = int(min(requests / slowest, MOST / total) * share.rate_per_s) + 1
    gap = 1e3 / (share.rate_per_s * scale)
    if workload.arrivals == "uniform":
        come = (np.arange(count) + random.random()) * gap
    elif workload.arrivals == "poisson":
        come = np.cumsum(random.exponential(gap, count))
    else:
        raise Mistake(f"arrivals {workload.arrivals}: not known. Write uniform or poisson.")
    model, factor = of(workload, share.model), slowdown(workload, node, share.model)
    times = [between(model.latency.sizes, model.latency.values, rows) * factor for rows in range(share.batch + 1)]
    return Stream(come=come, times=times)
