"""How a load spreads over three replicas, and what the front door costs one client, in rounds of random order."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perf.load.crew import Crew
from perf.load.pool import Pool
from perf.studies.cluster import clients
from perf.studies.cluster.clients import NS, PROTOCOLS, Counts, Door, Protocol
from perf.studies.cluster.program import RunningCluster
from perf.studies.cluster.record import BalanceRound
from serve.management.statistics import Counters

REPLICAS = 3
CLIENTS = 24
REQUESTS, LONE_REQUESTS = 2000, 200
WARM_UP_S, LONGEST_S = 1.0, 60.0
DEPLOYMENT = "replicas"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A running cluster, and the requests that are sent to it."""

    cluster: RunningCluster
    model: str
    pool: Pool
    progress: Callable[[str], None]

    def load(self, door: Door, protocol: Protocol, number: int, requests: int) -> Counts:
        """`number` clients, until `requests` requests have ended after the warm-up."""

        def until(crew: Crew, start_ns: int) -> bool:
            timings = crew.timings
            return int((timings["due"] > start_ns + int(WARM_UP_S * NS)).sum()) >= requests

        timings, start, _ = clients.load(door, self.pool, protocol, number, until, most_s=LONGEST_S)
        return Counts.of(timings[timings["due"] > start + int(WARM_UP_S * NS)])

    def round(self, protocol: Protocol, rng: random.Random) -> BalanceRound:
        """One round: the loads in random order."""
        results: dict[str, Counts] = {}
        shares: tuple[int, ...] = ()
        direct: dict[str, float] = {}
        door: dict[str, float] = {}
        for replicas in rng.sample((1, REPLICAS), 2):
            self.progress(f"{replicas} replicas, {CLIENTS} clients, {protocol}")
            self.cluster.scale(DEPLOYMENT, replicas)
            before = self._counted()
            results[str(replicas)] = self.load(self.cluster.door(self.model), protocol, CLIENTS, REQUESTS)
            if replicas == REPLICAS:
                shares = tuple(count - before.get(name, 0) for name, count in self._counted().items())
                for is_direct, each in rng.sample([(side, each) for side in (True, False) for each in PROTOCOLS], 4):
                    self.progress(f"one client, {'without' if is_direct else 'with'} the front door, {each}")
                    (direct if is_direct else door)[each] = self._lone(each, is_direct).p50_ms
        return BalanceRound(
            one=results["1"], three=results[str(REPLICAS)], shares=shares, direct_ms=direct, door_ms=door
        )

    def _lone(self, protocol: Protocol, is_direct: bool) -> Counts:
        door = self.cluster.door(self.model)
        if is_direct:
            replica = self.cluster.ready()[0]
            door = Door(
                model=self.model,
                http_url=f"{replica.host}:{replica.http_port}",
                grpc_url=f"{replica.host}:{replica.grpc_port}",
            )
        return self.load(door, protocol, 1, LONE_REQUESTS)

    def _counted(self) -> Mapping[str, int]:
        """The requests that the server of each replica has counted."""
        return {
            replica.name: Counters.read(f"{replica.host}:{replica.grpc_port}", self.model).requests
            for replica in self.cluster.ready()
        }
