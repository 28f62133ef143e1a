"""One candidate under one load, simulated: throughput, latency percentiles, batches, and what part of it is waiting."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.candidate import Candidate
from perf.service_profile import Profile, Way
from perf.simulate.clients import Clients
from perf.simulate.costs import Costs
from perf.study import Prediction, Sla
from perf.traffic import Traffic
from serve.batcher.request import US
from serve.batcher.simulation import Outcome, simulate

# Of all requests, those left out at the start, until batches and queue are what they will be.
WARM_UP = 0.1
PERCENTILES = (50, 90, 95, 99)


def predict(
    candidate: Candidate,
    config: ModelConfig,
    traffic: Traffic,
    profile: Profile,
    sla: Sla,
    *,
    requests: int = 20_000,
    seed: int = 0,
    way: Way | None = None,
    warm_up: float = WARM_UP,
) -> Prediction:
    """What `candidate`, put into `config`, does under `traffic`, from the service times in `profile`.

    Latencies are the client's: the server's queue and execution, and `way`, the network and the client itself, which
    without one is as the ramp saw it (of perf_analyzer, a light client). The first requests, a share `warm_up`, are
    left out. Raises `Mistake` for threads without a ramp, `RulesError` for a scheduler that is not the batcher.
    """
    costs = Costs.of(candidate, profile)
    load = Clients(traffic, requests, way or costs.way, seed=seed)
    slowdown = costs.slowdown if costs.instances > 1 else None
    outcome = simulate(candidate.rules(config), costs.service(seed), load, slowdown=slowdown, gap=costs.gap(seed))
    return _cut(outcome, costs, load.extra_us, warm_up=warm_up, drain=traffic.clients).prediction(
        candidate, sla, traffic.rows
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulation without its warm-up and its end: latencies in microseconds of the requests in between."""

    latencies_us: NDArray[np.float64]
    queues_us: NDArray[np.float64]
    refused: int
    seconds: float
    busy_s: float
    instances: int
    sizes: dict[int, int]

    @property
    def throughput_per_s(self) -> float:
        """Requests answered per second."""
        return len(self.latencies_us) / self.seconds if self.seconds else 0.0

    @property
    def mean_us(self) -> float:
        """Mean latency."""
        return float(np.mean(self.latencies_us)) if len(self.latencies_us) else 0.0

    def prediction(self, candidate: Candidate, sla: Sla, rows: int) -> Prediction:
        """The same as the study keeps it."""
        served = len(self.latencies_us)
        late = int(np.sum(self.latencies_us > sla.latency_ms * 1e3)) + self.refused
        found = np.percentile(self.latencies_us, PERCENTILES) if served else np.full(len(PERCENTILES), np.inf)
        executions = sum(self.sizes.values())
        return Prediction(
            candidate=candidate,
            requests=served + self.refused,
            throughput_rows_per_s=self.throughput_per_s * rows,
            percentiles_ms={one: float(value) / 1e3 for one, value in zip(PERCENTILES, found, strict=True)},
            late=late / max(1, served + self.refused),
            rows_per_execution=sum(size * n for size, n in self.sizes.items()) / max(1, executions),
            queue_share=float(np.sum(self.queues_us) / np.sum(self.latencies_us)) if served else 0.0,
            busy=self.busy_s / (self.seconds * self.instances) if self.seconds else 0.0,
            sizes=self.sizes,
            queue_ms=self._queue_ms() if served else {},
        )

    def _queue_ms(self) -> dict[int, float]:
        """Mean queue time of the requests whose latency is within one percentile of each."""
        queues = self.queues_us[np.argsort(self.latencies_us, kind="stable")]
        n = len(queues)
        return {
            one: float(np.mean(queues[n * (one - 1) // 100 : max(n * min(one + 1, 100) // 100, 1)])) / 1e3
            for one in PERCENTILES
            if n * (one - 1) // 100 < max(n * min(one + 1, 100) // 100, 1)
        }


def _cut(outcome: Outcome, costs: Costs, extra_us: Mapping[int, float], *, warm_up: float, drain: int) -> Run:
    """Leave out the warm-up, and the end at which a closed loop's clients stop one by one."""
    answers = outcome.answers
    first, last = int(warm_up * len(answers)), max(1, len(answers) - drain)
    kept = answers[first:last]
    begin, end = answers[first].at, answers[last - 1].at
    started = {request.number: one.start for one in outcome.executions for request in one.requests}
    served = [answer for answer in kept if not answer.error]
    latencies = np.array([float(answer.latency) / US + extra_us[answer.request.number] for answer in served])
    queues = np.array([float(started[answer.request.number] - answer.request.at) for answer in served]) / US
    within = [one for one in outcome.executions if begin <= one.start < end]
    return Run(
        latencies_us=latencies,
        queues_us=queues + costs.dispatch_us,
        refused=len(kept) - len(served),
        seconds=float(end - begin) / 1e9,
        busy_s=sum(float(one.end - one.start) for one in within) / 1e9,
        instances=costs.instances,
        sizes=dict(sorted(Counter(one.rows for one in within).items())),
    )
