"""One candidate under one load, simulated: throughput, latency percentiles, batches, and what part of it is waiting."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.batcher.request import US
from perf.batcher.simulation import Outcome, simulate
from perf.measure.service_profile import Profile
from perf.records.candidate import Candidate
from perf.records.study import Prediction, Sla
from perf.records.traffic import Traffic
from perf.simulate.clients import Clients
from perf.simulate.costs import LATE_US, Costs
from perf.stats.percentile import percentile

# Of all requests, those left out at the start, until batches and queue are what they will be.
WARM_UP = 0.1
# A closed loop can settle in more than one rhythm (two half batches in turn, or one full one) and keep it for minutes.
# So it is started anew as often as the requests allow, as measurements are, and the runs are taken together.
ROUNDS, MOST_RUNS = 60, 24
PERCENTILES = (50, 90, 95, 99)
# How far a prediction may be from what is measured, as shares of it.
LIMITS = {"throughput": 0.05, "p50": 0.10, "p95": 0.20}


def predict(
    candidate: Candidate,
    config: ModelConfig,
    traffic: Traffic,
    profile: Profile,
    sla: Sla,
    *,
    requests: int = 20_000,
    seed: int = 0,
    overhead_us: float = 0.0,
    stretch: float = 1.0,
) -> Prediction:
    """What `candidate`, put into `config`, does under `traffic`, from the service times in `profile`.

    Latencies are the client's: the queue, the computing, and the way through network and client behind the answers
    before its own, which is `overhead_us` longer than perf_analyzer's, a light client. Executions take `stretch` times
    as long as in the ramp. The first requests are left out, unless their times are given. Raises `Mistake` for threads
    without a ramp, `RulesError` for a scheduler that is not the batcher.
    """
    costs = Costs.of(candidate, profile, open_loop=traffic.open).stretched(stretch)
    rules = candidate.rules(config)
    slowdown = costs.slowdown if costs.instances > 1 else None
    times = _times(traffic, requests)
    way = costs.way.longer(overhead_us)
    runs = []
    for one in range(times):
        drawn = [seed, one]
        load = Clients(traffic, len(traffic.times_s) or requests // times, way, seed=drawn, delayed=rules.delay > 0)
        outcome = simulate(
            rules,
            costs.service(drawn),
            load,
            slowdown=slowdown,
            burden=costs.burden,
            gap=costs.gap(drawn),
            waking=costs.waking if costs.cold_us else None,
            dispatch=round(costs.dispatch_us * US),
            lateness=round(LATE_US * US),
        )
        warm_up = 0.0 if traffic.times_s else WARM_UP
        runs.append(_cut(outcome, costs, load.extra_us, warm_up=warm_up, drain=traffic.clients))
    return Run.together(runs).prediction(candidate, sla, traffic.rows)


def _times(traffic: Traffic, requests: int) -> int:
    """How often the load is begun anew: a closed loop and one whose times are given, as often as requests allow."""
    if traffic.times_s:
        return max(1, requests // len(traffic.times_s))
    return 1 if traffic.open else max(1, min(MOST_RUNS, requests // (ROUNDS * traffic.clients)))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulation without its warm-up and its end: latencies in microseconds of the requests in between.

    `answered` counts those after the first moment, so that over `seconds` they are a rate. `sizes` maps rows to
    executions, `computing_us` to the time of all of them together until they had computed.
    """

    latencies_us: NDArray[np.float64]
    queues_us: NDArray[np.float64]
    answered: int
    refused: int
    seconds: float
    busy_s: float
    instances: int
    sizes: dict[int, int]
    computing_us: dict[int, float]

    @classmethod
    def together(cls, runs: Sequence["Run"]) -> "Run":
        """Several runs as one."""
        sizes: Counter[int] = Counter()
        computing_us: Counter[int] = Counter()
        for run in runs:
            sizes.update(run.sizes)
            computing_us.update(run.computing_us)
        return cls(
            latencies_us=np.concatenate([run.latencies_us for run in runs]),
            queues_us=np.concatenate([run.queues_us for run in runs]),
            answered=sum(run.answered for run in runs),
            refused=sum(run.refused for run in runs),
            seconds=sum(run.seconds for run in runs),
            busy_s=sum(run.busy_s for run in runs),
            instances=runs[0].instances,
            sizes=dict(sorted(sizes.items())),
            computing_us=dict(computing_us),
        )

    @property
    def throughput_per_s(self) -> float:
        """Requests answered per second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def mean_us(self) -> float:
        """Mean latency."""
        return float(np.mean(self.latencies_us)) if len(self.latencies_us) else 0.0

    def prediction(self, candidate: Candidate, sla: Sla, rows: int) -> Prediction:
        """The same as the study keeps it."""
        served = len(self.latencies_us)
        late = int(np.sum(self.latencies_us > sla.latency_ms * 1e3)) + self.refused
        executions = sum(self.sizes.values())
        return Prediction(
            candidate=candidate,
            requests=served + self.refused,
            throughput_rows_per_s=self.throughput_per_s * rows,
            percentiles_ms={one: float(percentile(self.latencies_us, one)) / 1e3 for one in PERCENTILES},
            late=late / max(1, served + self.refused),
            rows_per_execution=sum(size * n for size, n in self.sizes.items()) / max(1, executions),
            queue_share=float(np.sum(self.queues_us) / np.sum(self.latencies_us)) if served else 0.0,
            busy=self.busy_s / (self.seconds * self.instances) if self.seconds else 0.0,
            sizes=self.sizes,
            queue_ms=self._queue_ms() if served else {},
            computing_ms={rows: us / self.sizes[rows] / 1e3 for rows, us in sorted(self.computing_us.items())},
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
    """Leave out that share of the start, and the end at which a closed loop's clients stop one by one."""
    answers = outcome.answers
    first, last = int(warm_up * len(answers)), max(1, len(answers) - drain)
    kept = answers[first:last]
    begin, end = answers[first].at, answers[last - 1].at
    started = {request.number: one.start for one in outcome.executions for request in one.requests}
    served = [answer for answer in kept if not answer.error]
    latencies = np.array([float(answer.latency) / US + extra_us[answer.request.number] for answer in served])
    queues = np.array([float(started[answer.request.number] - answer.request.at) for answer in served]) / US
    within = [one for one in outcome.executions if begin <= one.start < end]
    computing: dict[int, float] = {}
    for one in within:
        computing[one.rows] = computing.get(one.rows, 0.0) + float(one.end - one.start) / US
    return Run(
        latencies_us=latencies,
        queues_us=queues,
        # Of the batches at both ends, either none counts or all.
        answered=sum(begin < answer.at <= end and not answer.error for answer in answers[first:]),
        refused=len(kept) - len(served),
        seconds=float(end - begin) / 1e9,
        busy_s=sum(float(one.end - one.start) / 1e9 + costs.output_us(one.rows) / 1e6 for one in within),
        instances=costs.instances,
        sizes=dict(sorted(Counter(one.rows for one in within).items())),
        computing_us=computing,
    )
