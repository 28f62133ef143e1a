"""Simulates one candidate under one load: throughput, latency percentiles, batch sizes and queue time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile
from perf.measure.service_way import Way
from perf.records import size_mix
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction
from perf.records.traffic import Traffic
from perf.simulate.batcher.mix import Mix
from perf.simulate.batcher.request import US
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate
from perf.simulate.clients import Clients
from perf.simulate.costs import Costs
from perf.stats.percentile import percentile

# Share of the requests to leave out at the start, until batches and queue have settled.
WARM_UP = 0.1
# A closed loop can settle in more than one rhythm (two half batches in turn, or one full one) and keep it for minutes.
# So it is restarted as often as the requests allow, as measurements are, and the runs are pooled.
ROUNDS, MOST_RUNS = 60, 24
PERCENTILES = (50, 90, 95, 99)
# Allowed errors of a prediction, as shares of the measured value.
LIMITS = {"throughput": 0.05, "p50": 0.10, "p95": 0.20}


def predict(
    candidate: Candidate,
    config: ModelConfig,
    traffic: Traffic,
    profile: Profile,
    target: LatencyTarget,
    *,
    requests: int = 20_000,
    seed: int = 0,
    way: Way | None = None,
    overhead_us: float = 0.0,
    stretch: float = 1.0,
) -> Prediction:
    """Simulate `candidate` under `traffic`.

    Latencies are the client's: queue, computing, and the way through network and client behind earlier answers.

    Args:
        candidate: the values to put into `config`.
        config: the model's configuration.
        traffic: the load. Its first requests are left out of the result, unless their times are given.
        profile: measured service times.
        target: the latency target, for the share of late requests.
        requests: how many to simulate.
        seed: of arrivals and noise.
        way: the client's way, as measured for it (None: that of the ramp's client, perf_analyzer in a closed loop).
        overhead_us: how much longer a request's way is than `way`.
        stretch: factor on the time of every execution.

    Raises `Mistake` for threads without a ramp, `RulesError` for another scheduler than the dynamic batcher.
    """
    simulated = simulated_run(
        candidate,
        config,
        traffic,
        profile,
        requests=requests,
        seed=seed,
        way=way,
        overhead_us=overhead_us,
        stretch=stretch,
    )
    return simulated.prediction(candidate, target, traffic.rows)


def simulated_run(
    candidate: Candidate,
    config: ModelConfig,
    traffic: Traffic,
    profile: Profile,
    *,
    requests: int,
    seed: int = 0,
    way: Way | None = None,
    overhead_us: float = 0.0,
    stretch: float = 1.0,
    drawn: np.random.Generator | None = None,
    runs: int | None = None,
) -> "SimulatedRun":
    """The requests behind the prediction of `predict`, with the same arguments.

    With `drawn`, the service times are random ones of those that the profile allows, and in every second case the
    clients of a closed loop start at random within an execution, since they can settle in more than one rhythm. `runs`
    is how often to start the load (None: a closed loop as often as `requests` allow).
    """
    traffic = _shaped(traffic, config, seed)
    costs = Costs.of(candidate, profile, rows=traffic.rows, drawn=drawn).stretched(stretch)
    rules = Rules.of(candidate.apply(config))
    slowdown = costs.slowdown if costs.instances > 1 else None
    times = runs or _times(traffic, requests)
    way = (way or costs.way).longer(overhead_us)
    clients_burden = round(way.of(traffic.rows, open_loop=traffic.open).burden_us * US)
    apart = drawn is not None and drawn.random() < 0.5
    outcomes = []
    for number in range(times):
        seeds = [seed, number]
        load = Clients(
            traffic,
            len(traffic.times_s) or requests // times,
            way,
            seed=seeds,
            delayed=rules.delay > 0,
            start_us=costs.alone_us[1] if apart else 0.0,
            constants=costs.constants,
        )
        outcome = simulate(
            rules,
            costs.service(seeds),
            load,
            slowdown=slowdown,
            burden=lambda running: costs.burden(running) + clients_burden,
            gap=costs.gap(seeds),
            race=costs.race(seeds),
            waking=costs.waking if costs.cold_us else None,
            dispatch=round(costs.dispatch_us * US),
            lateness=round(costs.late_us * US),
        )
        warm_up = 0.0 if traffic.times_s else WARM_UP
        outcomes.append(_cut(outcome, costs, load.extra_us, warm_up=warm_up, drain=traffic.clients))
    return SimulatedRun.pooled(outcomes)


def _shaped(traffic: Traffic, config: ModelConfig, seed: int) -> Traffic:
    """The traffic with the shapes of its mix in a drawn order, as a load sends them; they decide what runs together."""
    if traffic.mix is None or traffic.shapes:
        return traffic
    sent = traffic.mix.sent
    sizes = size_mix.drawn(sent, len(sent) * -(-size_mix.MOST_SENT // len(sent)), seed)
    return replace(traffic, shapes=tuple(Mix(sizes=sizes).shapes(config)))


def _times(traffic: Traffic, requests: int) -> int:
    """Return how often to start the load: a closed loop, or given times, as often as `requests` allow."""
    if traffic.times_s:
        return max(1, requests // len(traffic.times_s))
    return 1 if traffic.open else max(1, min(MOST_RUNS, requests // (ROUNDS * traffic.clients)))


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One simulation without its warm-up and its end: latencies and queue times of the requests in between.

    `answered` counts the answers after the first moment, so that `answered / seconds` is a rate. `sizes` maps rows to
    the number of executions, `computing_us` to their total computing time.
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
    def pooled(cls, runs: Sequence["SimulatedRun"]) -> "SimulatedRun":
        """Pool several runs into one."""
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

    def prediction(self, candidate: Candidate, target: LatencyTarget, rows: int) -> Prediction:
        """Return the prediction, as studies store it."""
        served = len(self.latencies_us)
        late = int(np.sum(self.latencies_us > target.latency_ms * 1e3)) + self.refused
        executions = sum(self.sizes.values())
        return Prediction(
            candidate=candidate,
            requests=served + self.refused,
            throughput_rows_per_s=self.throughput_per_s * rows,
            percentiles_ms={percent: float(percentile(self.latencies_us, percent)) / 1e3 for percent in PERCENTILES},
            late=late / max(1, served + self.refused),
            rows_per_execution=sum(size * n for size, n in self.sizes.items()) / max(1, executions),
            queue_share=float(np.sum(self.queues_us) / np.sum(self.latencies_us)) if served else 0.0,
            busy=self.busy_s / (self.seconds * self.instances) if self.seconds else 0.0,
            sizes=self.sizes,
            queue_ms=self._queue_ms() if served else {},
            computing_ms={rows: us / self.sizes[rows] / 1e3 for rows, us in sorted(self.computing_us.items())},
        )

    def _queue_ms(self) -> dict[int, float]:
        """Return, for each percentile, the mean queue time of requests within one percentile of it."""
        queues = self.queues_us[np.argsort(self.latencies_us, kind="stable")]
        n = len(queues)
        ends = {percent: (n * (percent - 1) // 100, max(n * (percent + 1) // 100, 1)) for percent in PERCENTILES}
        return {percent: float(np.mean(queues[a:b])) / 1e3 for percent, (a, b) in ends.items() if a < b}


def _cut(
    outcome: SimulationResult, costs: Costs, extra_us: Mapping[int, float], *, warm_up: float, drain: int
) -> SimulatedRun:
    """Leave out the share `warm_up` at the start, and the end, where a closed loop's clients stop one by one."""
    answers = outcome.answers
    first, last = int(warm_up * len(answers)), max(1, len(answers) - drain)
    inner = answers[first:last]
    begin, end = answers[first].at, answers[last - 1].at
    started = {request.number: execution.start for execution in outcome.executions for request in execution.requests}
    served = [answer for answer in inner if not answer.error]
    latencies = np.array([float(answer.latency) / US + extra_us[answer.request.number] for answer in served])
    queues = np.array([float(started[answer.request.number] - answer.request.at) for answer in served]) / US
    within = [execution for execution in outcome.executions if begin <= execution.start < end]
    computing: dict[int, float] = {}
    for execution in within:
        us = float(execution.end - execution.start) / US
        computing[execution.rows] = computing.get(execution.rows, 0.0) + us
    return SimulatedRun(
        latencies_us=latencies,
        queues_us=queues,
        # Batches at both ends count entirely or not at all.
        answered=sum(begin < answer.at <= end and not answer.error for answer in answers[first:]),
        refused=len(inner) - len(served),
        seconds=float(end - begin) / 1e9,
        busy_s=sum(computing.values()) / 1e6 + sum(costs.output_us(execution.rows) for execution in within) / 1e6,
        instances=costs.instances,
        sizes=dict(sorted(Counter(execution.rows for execution in within).items())),
        computing_us=computing,
    )
