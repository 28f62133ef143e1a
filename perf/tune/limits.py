"""What holds a measured configuration back now: cores, other work, compute, transfer or the queue, and the numbers."""

import math
from collections.abc import Sequence

import numpy as np

from perf.records.study import Trial
from perf.records.traffic import Traffic

# Above these shares something is full: what is left over is the granularity of batches and of measuring.
CORES_FULL, INSTANCES_FULL, MOSTLY = 0.9, 0.85, 0.5
# So much of all cores for others is more than the machine itself needs to carry the load.
OTHERS = 0.2


def limit(trials: Sequence[Trial]) -> str:
    """A sentence about the trials of one configuration, the narrowest place first; raises `ValueError` for none."""
    if not trials:
        raise ValueError("nothing was measured")
    counted = sum((one.counted for one in trials[1:]), trials[0].counted)
    seconds = sum(one.seconds for one in trials)
    cores = float(np.mean([one.cores_busy for one in trials]))
    counted_ours = [one.cores_ours for one in trials if one.cores_ours is not None]
    ours = float(np.mean(counted_ours)) if counted_ours else None
    busy = counted.busy_ns / 1e9 / seconds / trials[0].candidate.instances
    queue = counted.per_request_us(counted.queue_ns) / 1e3
    compute = counted.per_request_us(counted.compute_ns) / 1e3
    answered = [us for one in trials for us in one.latencies_us if math.isfinite(us)]
    latency = float(np.mean(answered)) / 1e3 if answered else math.inf
    outside = max(0.0, latency - queue - compute)
    parts = (
        f"of {latency:.3g} ms a request waits {queue:.3g} ms, is computed for {compute:.3g} ms and is on its way for "
        f"{outside:.3g} ms; instances are busy {min(busy, 1):.0%} of the time, cores {cores:.0%}{_of(ours)}, "
        f"{counted.rows_per_execution:.3g} rows run together"
    )
    return f"{_narrowest(trials[0], cores, ours, busy, queue, outside, latency)} ({parts})"


def _of(ours: float | None) -> str:
    return "" if ours is None else f" (server and clients {ours:.0%})"


def _narrowest(
    trial: Trial, cores: float, ours: float | None, busy: float, queue: float, outside: float, latency: float
) -> str:
    others = 0.0 if ours is None else cores - ours
    if cores >= CORES_FULL and others >= OTHERS:
        return f"other work: it took {others:.0%} of the cores, which are full; measure again on a quiet machine"
    if cores >= CORES_FULL:
        return "cores: they are full, so more instances or clients only share them out"
    if busy >= INSTANCES_FULL:
        return "compute: the instances are full, so only a faster execution, larger batches or more devices help"
    if outside >= MOSTLY * latency:
        return "transfer: most of the time is between client and server, not in it"
    if queue >= MOSTLY * latency:
        return "queue: most of the time is spent waiting for a batch to begin"
    more = "requests" if Traffic.parse(trial.load).open else "clients"
    return f"load: neither cores nor instances are full, more {more} would be served"
