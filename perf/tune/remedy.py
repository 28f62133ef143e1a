"""If nothing meets the target: how near the best comes, and which target or load could be met."""

import math
from collections.abc import Sequence
from dataclasses import replace

from perf.records.candidate import Candidate
from perf.records.traffic import Traffic
from perf.tune.pooled_trials import PooledTrials
from perf.tune.screening import Screen
from perf.tune.simulator import NO_CORRECTION, Corrections
from perf.tune.space import Parallelism

REQUESTS = 1_000
HALVINGS = 6


def remedies(
    closest: PooledTrials, screen: Screen, corrections: Corrections, candidates: Sequence[Candidate]
) -> list[str]:
    """Return what would have to change, one sentence each."""
    goal, traffic = screen.goal, screen.traffic
    if objection := goal.objection(closest):
        return [f"the limits: {closest.candidate} {objection}, and no measured configuration is within them"]
    sentences = []
    if goal.carries(closest) and math.isfinite(closest.p99_ms):
        reachable_ms = closest.p99_ms / (1 - goal.margin)
        sentences.append(
            f"the target: {closest.candidate} reached a p99 of {closest.p99_ms:.4g} ms, so ask for "
            f"{reachable_ms:.4g} ms"
        )
    lighter = _lighter(screen, corrections, candidates)
    if lighter is not None:
        sentences.append(f"the load: {lighter[0]} is expected to meet it, with {lighter[1]}")
    if traffic.rows > 1:
        sentences.append(f"the requests: the {traffic.rows} rows of each run together; send fewer rows in a request")
    alone = min(alone_ms(screen, candidates), closest.p99_ms)
    if alone > goal.limit_ms:
        sentences.append(f"the model or the device: one request alone takes {alone:.4g} ms, which no batching shortens")
    return sentences


def alone_ms(screen: Screen, candidates: Sequence[Candidate]) -> float:
    """Return the median latency of a lone request without a delay, with the best instances for it."""
    lone = {replace(candidate, delay_us=0, preferred=()) for candidate in candidates}
    smallest_first = sorted(lone, key=lambda candidate: candidate.max_batch_size)
    by_parallelism = {Parallelism.of(candidate): candidate for candidate in smallest_first}
    client = Traffic(pattern="closed", clients=1, rows=screen.traffic.rows, mix=screen.traffic.mix)
    # Not corrected: contention was fitted to executions that share cores, and a lone one does not.
    predictions = [
        screen.simulator.predict(candidate, client, NO_CORRECTION, requests=100)
        for candidate in by_parallelism.values()
    ]
    return min(prediction.percentiles_ms[50] for prediction in predictions)


def _lighter(
    screen: Screen, corrections: Corrections, candidates: Sequence[Candidate]
) -> tuple[Traffic, Candidate] | None:
    """Return the heaviest lighter load of the same kind that a candidate should carry, found by bisection."""
    traffic = screen.traffic
    if traffic.open and not traffic.rate_per_s:
        return None
    low, high, best = 0.0, 1.0, None
    for _ in range(HALVINGS):
        share = (low + high) / 2
        smaller = _share(traffic, share)
        candidate = next((each for each in candidates if _meets(screen, corrections, each, smaller)), None)
        if candidate is None:
            high = share
        else:
            low, best = share, (smaller, candidate)
    return best


def _meets(screen: Screen, corrections: Corrections, candidate: Candidate, traffic: Traffic) -> bool:
    screened = replace(screen, traffic=traffic).look(candidate, corrections, requests=REQUESTS)
    return screen.goal.met(screened)


def _share(traffic: Traffic, share: float) -> Traffic:
    if not traffic.open:
        return replace(traffic, clients=max(1, round(share * traffic.clients)))
    return replace(traffic, rate_per_s=float(f"{share * traffic.rate_per_s:.3g}"))
