"""Names the bottleneck of a measured configuration: cores, other work, instances, transfer, queue or load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf.records.study import Trial
from perf.records.traffic import Traffic

# Above these shares a resource is full; the rest is lost to the granularity of batches and of measuring.
CORES_FULL, INSTANCES_FULL, MOSTLY = 0.9, 0.85, 0.5
# Other processes that take this share of all cores are more than the machine's own housekeeping.
OTHERS = 0.2


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """Means over the trials of one configuration; times in ms. `ours` is server and clients, None if not measured."""

    cores: float
    ours: float | None
    instances: float
    queue_ms: float
    compute_ms: float
    latency_ms: float

    @property
    def outside_ms(self) -> float:
        return max(0.0, self.latency_ms - self.queue_ms - self.compute_ms)


def bottleneck(trials: Sequence[Trial]) -> str:
    """Return a sentence that names the bottleneck of one configuration, with figures; raises `ValueError` for none."""
    if not trials:
        raise ValueError("nothing was measured")
    counted = sum((trial.counted for trial in trials[1:]), trials[0].counted)
    seconds = sum(trial.seconds for trial in trials)
    ours = [trial.cores_ours for trial in trials if trial.cores_ours is not None]
    answered = [us for trial in trials for us in trial.latencies_us if math.isfinite(us)]
    if not answered:
        return "overload: no request was answered, so no time of a request is known"
    shares = _Shares(
        cores=float(np.mean([trial.cores_busy for trial in trials])),
        ours=float(np.mean(ours)) if ours else None,
        instances=counted.busy_ns / 1e9 / seconds / trials[0].candidate.instances,
        queue_ms=counted.per_request_us(counted.queue_ns) / 1e3,
        compute_ms=counted.per_request_us(counted.compute_ns) / 1e3,
        latency_ms=float(np.mean(answered)) / 1e3,
    )
    more = "requests" if Traffic.of_record(trials[0].load).open else "clients"
    own = "" if shares.ours is None else f" (server and clients {shares.ours:.0%})"
    return (
        f"{_narrowest(shares, more)} (of {shares.latency_ms:.3g} ms a request waits {shares.queue_ms:.3g} ms, runs "
        f"{shares.compute_ms:.3g} ms and spends {shares.outside_ms:.3g} ms outside the server; instances are busy "
        f"{min(shares.instances, 1):.0%} of the time, cores {shares.cores:.0%}{own}, "
        f"{counted.rows_per_execution:.3g} rows per execution)"
    )


def _narrowest(shares: _Shares, more: str) -> str:
    others = 0.0 if shares.ours is None else shares.cores - shares.ours
    if shares.cores >= CORES_FULL and others >= OTHERS:
        return f"other work: it took {others:.0%} of the cores, which are full; measure again on a quiet machine"
    if shares.cores >= CORES_FULL:
        return "cores: all are busy, so more instances or clients only share them"
    if shares.instances >= INSTANCES_FULL:
        return "compute: the instances are full, so only a faster execution, larger batches or more devices help"
    if shares.outside_ms >= MOSTLY * shares.latency_ms:
        return "transfer: most of the time passes between client and server"
    if shares.queue_ms >= MOSTLY * shares.latency_ms:
        return "queue: most of the time is spent waiting for a batch to start"
    return f"load: neither cores nor instances are full, so more {more} could be served"
