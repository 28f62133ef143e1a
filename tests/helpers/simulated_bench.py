"""A bench that simulates the batcher with invented service times, so that a search has a known best answer.

`InventedSimulator` gives the search's predictions, `SimulatedBench` its measurements; a test may let them differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import numpy as np
from request_sources import request_source
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction, Study, Trial
from perf.records.traffic import Traffic
from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.request_source import Answer, RequestSource
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import SimulationResult, simulate
from perf.stats.latency_target import judge
from perf.tune.goal import Goal
from perf.tune.screening import Screen
from perf.tune.search import Search
from perf.tune.simulator import Correction
from perf.tune.space import Parallelism, space, tried_values
from perf.tune.study_log import WARM_UP_S, Budget, StudyLog
from serve.management.statistics import Counters
from triton_batching.machine import Machine

CONFIG = ModelConfig(
    name="invented", max_batch_size=8, instance_group=[ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_CPU)]
)
CONFIG.dynamic_batching.SetInParent()
MACHINE = Machine(cpu="test", cores=2, memory_bytes=2**33, system="Linux", gpu=None)
OUTSIDE_US = 300.0

Service = Callable[[Parallelism, int], float]
"""Microseconds of one execution by its rows."""


def accelerator(parallelism: Parallelism, rows: int) -> float:
    """20 ms and 0.5 ms a row, however many instances there are."""
    return 20_000 + 500 * rows


def shared_cores(parallelism: Parallelism, rows: int) -> float:
    """6 ms and 0.7 ms a row; two instances are each 1.7 times as slow."""
    return (6_000 + 700 * rows) * (1.7 if parallelism.instances > 1 else 1.0)


@dataclass(frozen=True)
class Until:
    """The requests of a load that arrive before `end`."""

    load: RequestSource
    end: Time

    def arrivals(self) -> Iterator[Request]:
        return takewhile(lambda request: request.at < self.end, self.load.arrivals())

    def after(self, answer: Answer) -> list[Request]:
        return [request for request in self.load.after(answer) if request.at < self.end]


def latencies_us(simulation: SimulationResult, outside_us: float) -> list[float]:
    """As the client sees them."""
    return [int(answer.latency) / 1e3 + outside_us for answer in simulation.served]


@cache
def predicted(
    service: Service, candidate: Candidate, traffic: Traffic, correction: Correction, requests: int
) -> Prediction:
    """One simulation of the batcher; the tests of one file share them."""
    parallelism = Parallelism.of(candidate)
    load = request_source(traffic, requests, turnaround=int((OUTSIDE_US + correction.overhead_us) * 1e3), seed=1)
    simulation = simulate(
        Rules.of(candidate.apply(CONFIG)),
        lambda rows: int(service(parallelism, rows) * correction.contention * 1e3),
        load,
    )
    latencies_ms = np.array(latencies_us(simulation, OUTSIDE_US + correction.overhead_us)) / 1e3
    return Prediction(
        candidate=candidate,
        requests=len(latencies_ms),
        throughput_rows_per_s=sum(answer.request.rows for answer in simulation.served) / int(simulation.makespan) * 1e9,
        percentiles_ms={p: float(np.percentile(latencies_ms, p, method="inverted_cdf")) for p in (50, 90, 95, 99)},
        late=0.0,
        rows_per_execution=simulation.rows_per_execution,
        queue_share=0.0,
        busy=0.0,
        sizes=simulation.sizes,
    )


@cache
def measured(
    service: Service, candidate: Candidate, traffic: Traffic, target: LatencyTarget, seconds: float, seed: int
) -> Trial:
    """A simulated trial, without its stage and round."""
    parallelism = Parallelism.of(candidate)
    begin, end = int(WARM_UP_S * 1e9), int((WARM_UP_S + seconds) * 1e9)
    # No candidate answers more than 1,300 requests a second; an open load offers its rate.
    most = int((1.2 * traffic.rate_per_s if traffic.open else 1_300) * (WARM_UP_S + seconds)) + 100
    load = request_source(traffic, most, turnaround=int(OUTSIDE_US * 1e3), seed=seed)
    simulation = simulate(
        Rules.of(candidate.apply(CONFIG)), lambda rows: int(service(parallelism, rows) * 1e3), Until(load, end)
    )
    inside = [answer for answer in simulation.served if begin <= int(answer.request.at)]
    latencies = [int(answer.latency) / 1e3 + OUTSIDE_US for answer in inside]
    late = sum(us > target.latency_ms * 1e3 for us in latencies)
    done = sum(answer.request.rows for answer in simulation.served if begin <= int(answer.at) < end)
    sizes = simulation.sizes
    counted = replace(
        Counters.none(),
        requests=len(latencies),
        rows=sum(rows * count for rows, count in sizes.items()),
        executions=sum(sizes.values()),
        queue_ns=int(sum(us - OUTSIDE_US for us in latencies) * 1e3),
        batches=sizes,
        batches_ns={rows: int(count * service(parallelism, rows) * 1e3) for rows, count in sizes.items()},
    )
    return made_trial(
        candidate,
        traffic,
        counted,
        latencies,
        rate=done / seconds,
        late=late,
        seconds=seconds,
        passed=judge(len(latencies), late, 1 - target.percent / 100),
        due_s=tuple((int(answer.request.at) - begin) / 1e9 for answer in inside),
    )


def made_trial(
    candidate: Candidate,
    traffic: Traffic,
    counted: Counters,
    latencies_us: Sequence[float],
    *,
    rate: float,
    late: int,
    seconds: float,
    passed: bool | None = None,
    due_s: tuple[float, ...] = (),
) -> Trial:
    """A trial in which nothing failed, without its stage and round."""
    return Trial(
        candidate=candidate,
        stage="",
        round=0,
        started_at="2026-01-01T00:00:00+00:00",
        load=str(traffic),
        seconds=seconds,
        throughput_rows_per_s=rate,
        offered_per_s=traffic.rate_per_s or None,
        requests=len(latencies_us),
        late=late,
        late_sends=0,
        not_sent=0,
        failed=0,
        passed=passed,
        latencies_us=tuple(latencies_us),
        due_s=due_s,
        stages_us={},
        counted=counted,
        cores_busy=0.5,
        load_average=0.1,
        command=(),
        planned_s=seconds,
        warm_up_s=WARM_UP_S,
        load_sha256=traffic.sha256,
    )


@dataclass(frozen=True, kw_only=True)
class InventedSimulator:
    """Predicts with invented service times, which need not be those of the bench."""

    service: Service

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        timing = Correction(contention=correction.contention, overhead_us=correction.overhead_us)
        return predicted(self.service, candidate, traffic, timing, requests)

    def contention(self, trial: Trial, *, rows: int) -> float:
        parallelism, counted = Parallelism.of(trial.candidate), trial.counted
        expected = sum(count * self.service(parallelism, rows) for rows, count in counted.batches.items())
        return sum(counted.batches_ns.values()) / 1e3 / expected

    def outside_us(self, trial: Trial) -> float:
        return OUTSIDE_US


class Interrupted(Exception):  # noqa: N818
    """Somebody pressed Ctrl-C."""


@dataclass(kw_only=True)
class SimulatedBench:
    """Measures by simulation with the true service times; after `stop_after` trials it is interrupted."""

    service: Service
    target: LatencyTarget
    stop_after: int | None = None
    measured: list[tuple[Candidate, str, int, str]] = field(default_factory=list)
    prepared: list[Candidate] = field(default_factory=list)

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        if self.stop_after is not None and len(self.measured) >= self.stop_after:
            raise Interrupted
        self.measured.append((candidate, stage, round, str(traffic)))
        # The simulation of a closed loop draws nothing.
        seed = 10 + len(self.measured) if traffic.open else 0
        return replace(measured(self.service, candidate, traffic, self.target, seconds, seed), stage=stage, round=round)

    def prepare(self, candidate: Candidate) -> None:
        self.prepared.append(candidate)

    def retire(self, candidate: Candidate) -> None:
        pass


def new_study(candidates: Sequence[Candidate], load: str, target: LatencyTarget, objective: str) -> Study:
    """A study of `CONFIG` in which nothing was measured; the first candidate is the default."""
    return Study(
        model=CONFIG.name,
        config_name="default",
        load=load,
        sla=target,
        objective=objective,
        machine=MACHINE,
        versions={},
        started_at="2026-01-01T00:00:00+00:00",
        command=(),
        default=candidates[0],
        chosen=None,
        space=tried_values(candidates),
        profiles=(),
        predictions=(),
        trials=(),
        steps=(),
        limit="",
        before_pbtxt="",
        after_pbtxt="",
    )


def searching(
    path: Path,
    load: str,
    p99_ms: float,
    *,
    believed: Service = accelerator,
    true: Service | None = None,
    objective: str = "throughput",
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16),
    stop_after: int | None = None,
) -> Search:
    """A search over these maximum batch sizes, five delays and one or two instances, with its record at `path`."""
    target, traffic = LatencyTarget(latency_ms=p99_ms), Traffic.parse(load)
    searched = replace(space(CONFIG, largest=16, cores=2, gpu=False), sizes=sizes)
    candidates = searched.candidates(believed)
    study = new_study(candidates, load, target, objective)
    bench = SimulatedBench(service=true or believed, target=target, stop_after=stop_after)
    screen = Screen(
        simulator=InventedSimulator(service=believed),
        traffic=traffic,
        goal=Goal(objective=objective, target=target, open=traffic.open),
        coarse=400,
        fine=1_000,
    )
    return Search(
        candidates=candidates,
        screen=screen,
        log=StudyLog(study, path, bench),
        budget=Budget(profile_points=2, profile_s=30.0),
    )


def bench_of(search: Search) -> SimulatedBench:
    """Return the bench on which a search measures."""
    bench = search.log.bench
    assert isinstance(bench, SimulatedBench)
    return bench
