"""A hostile load on a front door: an overload, slow senders, large and malformed requests, beside honest tenants.

Two tenants send at their rates, which the cluster can carry. A third sends ten times its capacity. An attacker with a
token of its own sends what single clients can.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from perf.load.arrivals import drawn
from perf.load.crew import Crew, crew
from perf.load.pool import Pool
from perf.load.timings import FAILED, RIGHT, WRONG, Timings
from perf.load.worker import Job
from perf.studies.cluster.attackers import Attacks, Target
from perf.studies.cluster.clients import NS, Counts, Door, Protocol
from perf.studies.cluster.program import RunningCluster

# Shares of the capacity: what each honest tenant sends, and may send; what the flood may send, and sends.
HONEST = ("honest-grpc", "honest-http")
HONEST_SHARE, HONEST_LIMIT = 0.2, 0.3
FLOOD, FLOOD_LIMIT, FLOOD_TIMES = "flood", 0.3, 10.0
ATTACKER, ATTACKER_PER_S = "attacker", 1000.0
FLOOD_PROCESSES, IN_FLIGHT = 2, 256
TIMEOUT_S, REPORT_S = 30.0, 2.0


@dataclass(frozen=True, kw_only=True)
class HostileOutcome:
    """What came of it: the requests of each tenant, the attacks by outcome, and the servers that lived through it.

    in_time: the share of each honest tenant's requests that were answered right within the target. deaths: replicas
    that ended.
    """

    tenants: Mapping[str, Counts]
    in_time: Mapping[str, float]
    errors: Mapping[str, int]
    attacks: Mapping[str, Mapping[str, int]]
    deaths: int
    proxy_restarts: int
    same_servers: bool


def tenants(capacity_per_s: float) -> tuple[tuple[str, float], ...]:
    """The tenants and their limits in requests per second."""
    honest = tuple((name, HONEST_LIMIT * capacity_per_s) for name in HONEST)
    return (*honest, (FLOOD, FLOOD_LIMIT * capacity_per_s), (ATTACKER, ATTACKER_PER_S))


def attack(
    cluster: RunningCluster,
    door: Door,
    pool: Pool,
    target: Target,
    *,
    tokens: Mapping[str, Mapping[str, str]],
    capacity_per_s: float,
    seconds: float,
    target_ms: float,
    progress: Callable[[str], None],
) -> HostileOutcome:
    """Send everything for `seconds` seconds. tokens: the headers of each tenant."""
    before = {replica.name: replica.pid for replica in cluster.status().replicas}
    owners, jobs = _jobs(door, pool, tokens, capacity_per_s, seconds)

    def over(members: Crew) -> bool:
        progress(f"{members.reported} requests of tenants")
        return False

    with crew(jobs) as members:
        members.await_ready(progress)
        start = members.start()
        attacks = Attacks.start(target, seed=1)
        try:
            end = start + int((seconds + TIMEOUT_S + REPORT_S) * NS)
            members.listen(end, over)
        finally:
            attacks.stop()
        timings, errors = np.sort(members.timings, order="due"), dict(members.errors)
    time.sleep(1.0)
    status = cluster.status()
    parts = {
        name: timings[np.isin(timings["worker"], [worker for worker, owner in owners.items() if owner == name])]
        for name in (*HONEST, FLOOD)
    }
    sent = {name: part[np.isin(part["outcome"], (RIGHT, WRONG, FAILED))] for name, part in parts.items()}
    return HostileOutcome(
        tenants={name: Counts.of(part) for name, part in sent.items()},
        in_time={name: _in_time(parts[name], target_ms) for name in HONEST},
        errors=errors,
        attacks={attack.name: dict(attack.outcomes) for attack in attacks.attacks},
        deaths=sum(deployment.deaths for deployment in status.deployments),
        proxy_restarts=status.proxy_restarts,
        same_servers={replica.name: replica.pid for replica in status.replicas} == before,
    )


def _in_time(timings: Timings, target_ms: float) -> float:
    """The share of the requests that were answered right within the target."""
    ms = (timings["done"] - timings["due"]) / 1e6
    return float(np.mean((timings["outcome"] == RIGHT) & (ms <= target_ms)))


def _jobs(
    door: Door, pool: Pool, tokens: Mapping[str, Mapping[str, str]], capacity_per_s: float, seconds: float
) -> tuple[dict[int, str], list[Job]]:
    """The processes of the tenants, and whose each is."""
    plan = [(name, HONEST_SHARE * capacity_per_s) for name in HONEST]
    plan += [(FLOOD, FLOOD_TIMES * capacity_per_s / FLOOD_PROCESSES)] * FLOOD_PROCESSES
    owners, jobs = {}, []
    for worker, (name, rate) in enumerate(plan):
        owners[worker] = name
        transport: Protocol = "http" if name == HONEST[1] else "grpc"
        jobs.append(
            Job(
                worker=worker,
                url=door.url(transport),
                model=door.model,
                transport=transport,
                timeout_s=TIMEOUT_S,
                requests=[(request.inputs, request.outputs) for request in pool.requests[worker :: len(plan)]],
                tolerances=pool.tolerances,
                due_s=drawn("poisson", rate, seconds, 1.0, np.random.default_rng(worker)),
                in_flight_limit=IN_FLIGHT,
                headers=tokens[name],
            )
        )
    return owners, jobs
