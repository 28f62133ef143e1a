"""Simulates one candidate under one load: throughput, latency percentiles, batch sizes and queue time."""

from dataclasses import replace

import numpy as np
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
from perf.simulate.batcher.simulation import simulate
from perf.simulate.clients import Clients
from perf.simulate.costs import Costs
from perf.simulate.simulated_run import SimulatedRun, cut

# Share of the requests to leave out at the start, until batches and queue have settled.
WARM_UP = 0.1
# A closed loop can settle in more than one rhythm (two half batches in turn, or one full one) and keep it for minutes.
# So it is restarted as often as the requests allow, as measurements are, and the runs are pooled.
ROUNDS, MOST_RUNS = 60, 24
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
) -> SimulatedRun:
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
            burden=costs.burden,
            gap=costs.gap(seeds),
            race=costs.race(seeds),
            waking=costs.waking if costs.cold_us else None,
            dispatch=round(costs.dispatch_us * US),
            lateness=round(costs.late_us * US),
        )
        warm_up = 0.0 if traffic.times_s else WARM_UP
        outcomes.append(cut(outcome, costs, load.extra_us, warm_up=warm_up, drain=traffic.clients))
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
