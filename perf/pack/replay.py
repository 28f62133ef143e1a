"""A simulation of a placement, event by event: requests arrive, and the models of a device take turns.

A model asks for the device when its batch is full or its oldest request has waited for `Node.delay_ms`. Of the models
that ask, the one with the fewest executions since it was loaded gets it, as with Triton's --rate-limit=execution_count.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perf.pack.placement import Node, Placement
from perf.pack.replayed import Replayed, summed
from perf.pack.validator import between, of
from perf.pack.workload import Model, Workload
from triton_batching.terminal import Mistake

# Requests of the least called model on a device in one replay; the others get as many as arrive in the same time.
REQUESTS = 2000
MAX_REQUESTS = 50_000
# A model that gets fewer within `MAX_REQUESTS` is called so often, which is more than planned.
RARE_REQUESTS = 100
# In half of the replays the models have executed so much more, one after the other in random order: more than a replay
# evens out.
AHEAD = 1_000_000
# The first part of a replay, in which the queues fill, does not count.
WARM_UP = 0.1


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
    workload: Workload,
    placement: Placement,
    *,
    numbers: Sequence[int] = range(1),
    scale: float = 1.0,
    seed: int = 0,
    requests: int = REQUESTS,
) -> list[Replayed]:
    """Simulate all devices at `scale` times their planned rates, with the workload's kind of arrivals.

    There is a replay for each of `numbers`, with arrivals of its own. Equal devices are replayed once.
    """
    found: dict[Node, list[Replayed]] = {}
    for device, node in enumerate(placement.nodes):
        if node not in found:
            replays = [
                _latencies(workload, node, scale, requests, np.random.default_rng((seed, len(found), number)))
                for number in numbers
            ]
            models = [of(workload, share.model) for share in node.shares]
            found[node] = [
                summed(device, model.name, latencies, model.target_ms)
                for model, latencies in zip(models, zip(*replays, strict=True), strict=True)
            ]
    return [replace(each, device=device) for device, node in enumerate(placement.nodes) for each in found[node]]


def serve(
    streams: Sequence[Stream], executions: Sequence[int] = (), *, delay_ms: float = 0.0
) -> list[NDArray[np.float64]]:
    """The times in ms at which each request of each stream is answered by one device.

    `executions` are those before the first arrival, by stream (none: 0 each).
    """
    arrivals = [[*stream.arrivals.tolist(), *[math.inf] * stream.batch] for stream in streams]
    executed = list(executions or [0] * len(streams))
    ends: list[list[float]] = [[] for _ in streams]
    asks = [_asks(times, 0, stream.batch, delay_ms) for times, stream in zip(arrivals, streams, strict=True)]
    now, left = 0.0, sum(len(stream.arrivals) for stream in streams)
    while left:
        now = max(now, min(asks))
        turn = min((at for at, time in enumerate(asks) if time <= now), key=executed.__getitem__)
        first, times, batch = len(ends[turn]), arrivals[turn], streams[turn].batch
        rows = bisect_right(times, now, first, first + batch) - first
        now += streams[turn].times[rows]
        ends[turn] += [now] * rows
        executed[turn] += 1
        asks[turn] = _asks(times, first + rows, batch, delay_ms)
        left -= rows
    return [np.array(each) for each in ends]


def _asks(times: Sequence[float], first: int, batch: int, delay_ms: float) -> float:
    """When a model whose oldest waiting request is `first` asks for the device."""
    return min(times[first] + delay_ms, times[first + batch - 1])


def _latencies(
    workload: Workload, node: Node, scale: float, requests: int, random: np.random.Generator
) -> list[NDArray[np.float64]]:
    """The latencies of each model on a device in one replay, in ms with the overhead, without the warm-up."""
    rates = [share.rate_per_s / 1e3 for share in node.shares]
    span_ms = min(requests / min(rates), MAX_REQUESTS / sum(rates)) / scale
    streams = [
        Stream(
            arrivals=_arrivals(workload.arrivals, max(rate * scale, RARE_REQUESTS / span_ms), span_ms, random),
            times=_times(of(workload, share.model), share.batch),
        )
        for rate, share in zip(rates, node.shares, strict=True)
    ]
    executions = AHEAD * int(random.integers(2)) * random.permutation(len(streams))
    ends = serve(streams, executions.tolist(), delay_ms=node.delay_ms)
    return [
        (answered - stream.arrivals)[stream.arrivals >= WARM_UP * span_ms] + of(workload, share.model).overhead_ms
        for share, stream, answered in zip(node.shares, streams, ends, strict=True)
    ]


def _arrivals(kind: str, rate: float, span_ms: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Ascending times of arrival within `span_ms`, `rate` per ms; raises `Mistake` for an unknown kind."""
    if kind == "uniform":
        return np.arange(random.random() / rate, span_ms, 1 / rate)
    if kind == "poisson":
        return np.sort(random.uniform(0, span_ms, random.poisson(rate * span_ms)))
    raise Mistake(f"unknown arrivals {kind}. Write uniform or poisson.")


def _times(model: Model, batch: int) -> list[float]:
    return [between(model.latency.sizes, model.latency.values, rows) for rows in range(batch + 1)]
