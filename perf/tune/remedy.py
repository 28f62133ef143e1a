"""Where nothing meets the target: how near the best comes, and which target or load could be met."""

from collections.abc import Sequence
from dataclasses import replace

from perf.records.candidate import Candidate
from perf.records.traffic import Traffic
from perf.tune.belief import AS_PROFILED, Belief
from perf.tune.screen import Screen
from perf.tune.space import Pair
from perf.tune.standing import Standing

REQUESTS = 1_000
HALVINGS = 6


def remedies(closest: Standing, screen: Screen, belief: Belief, candidates: Sequence[Candidate]) -> list[str]:
    """What would have to change, one sentence each."""
    goal, traffic = screen.goal, screen.traffic
    reachable = closest.p99_ms / (1 - goal.margin)
    found = []
    if goal.carries(closest):
        found.append(
            f"the target: {closest.candidate} reached a p99 of {closest.p99_ms:.4g} ms, so ask for {reachable:.4g} ms"
        )
    lighter = _lighter(screen, belief, candidates)
    if lighter is not None:
        found.append(f"the load: {lighter[0]} is expected to meet it, with {lighter[1]}")
    if traffic.rows > 1:
        found.append(f"the requests: of {traffic.rows} rows each, all of which must be computed together; send fewer")
    alone = min(alone_ms(screen, candidates), closest.p99_ms)
    if alone > goal.limit_ms:
        found.append(f"the model or the device: one request alone takes {alone:.4g} ms, which no batching shortens")
    return found


def alone_ms(screen: Screen, candidates: Sequence[Candidate]) -> float:
    """Median latency of a request that meets no other and waits for none, with the instances that suit it best."""
    lone = {replace(one, delay_us=0, preferred=()) for one in candidates}
    by_pair = {Pair.of(one): one for one in sorted(lone, key=lambda one: one.max_batch_size)}
    client = Traffic(pattern="closed", clients=1, rows=screen.traffic.rows)
    # As profiled: what trials taught of executions that share cores with others is not true of one alone.
    predictions = [screen.simulator.predict(one, client, AS_PROFILED, requests=100) for one in by_pair.values()]
    return min(one.percentiles_ms[50] for one in predictions)


def _lighter(screen: Screen, belief: Belief, candidates: Sequence[Candidate]) -> tuple[Traffic, Candidate] | None:
    """The heaviest lighter load of the same kind that some candidate is expected to bear, by bisection."""
    traffic = screen.traffic
    if traffic.open and not traffic.rate_per_s:
        return None
    low, high, best = 0.0, 1.0, None
    for _ in range(HALVINGS):
        share = (low + high) / 2
        smaller = _share(traffic, share)
        met = next((one for one in candidates if _meets(screen, belief, one, smaller)), None)
        if met is None:
            high = share
        else:
            low, best = share, (smaller, met)
    return best


def _meets(screen: Screen, belief: Belief, candidate: Candidate, traffic: Traffic) -> bool:
    found = replace(screen, traffic=traffic).look(candidate, belief, requests=REQUESTS)
    return screen.goal.met(found)


def _share(traffic: Traffic, share: float) -> Traffic:
    if not traffic.open:
        return replace(traffic, clients=max(1, round(share * traffic.clients)))
    return replace(traffic, rate_per_s=float(f"{share * traffic.rate_per_s:.3g}"))
