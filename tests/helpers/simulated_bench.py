"""A bench that simulates the batcher with invented service times, so that a search has a known best answer.

`InventedSimulator` gives the search's predictions, `SimulatedBench` its measurements; a test may let them differ.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from request_sources import request_source
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction, Study, Trial
from perf.records.traffic import Traffic
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
from tests.perf.report.sweep.test_summary import MACHINE, NOTHING

CONFIG = ModelConfig(
    name="invented", max_batch_size=8, instance_group=[ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_CPU)]
)
CONFIG.dynamic_batching.SetInParent()
OUTSIDE_US = 300.0

Service = Callable[[Parallelism, int], float]
"""Microseconds of one execution by its rows."""


def accelerator(parallelism: Parallelism, rows: int) -> float:
    """20 ms and 0.5 ms a row, however many instances there are."""
    del parallelism
    return 20_000 + 500 * rows


def shared_cores(parallelism: Parallelism, rows: int) -> float:
    """6 ms and 0.7 ms a row; two instances are each 1.7 times as slow."""
    return (6_000 + 700 * rows) * (1.7 if parallelism.instances > 1 else 1.0)


def outcome(
    service: Service, candidate: Candidate, traffic: Traffic, requests: int, seed: int, extra_us: float = 0.0
) -> SimulationResult:
    """One run of the batcher."""
    parallelism = Parallelism.of(candidate)
    load = request_source(traffic, requests, turnaround=int((OUTSIDE_US + extra_us) * 1e3), seed=seed)
    return simulate(Rules.of(candidate.apply(CONFIG)), lambda rows: int(service(parallelism, rows) * 1e3), load)


def latencies_ms(run: SimulationResult, extra_us: float = 0.0) -> list[float]:
    """As the client sees them."""
    return [int(answer.latency) / 1e6 + (OUTSIDE_US + extra_us) / 1e3 for answer in run.served]


@dataclass(frozen=True, kw_only=True)
class InventedSimulator:
    """Predicts with invented service times, which need not be those of the bench."""

    service: Service

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        run = outcome(
            lambda parallelism, rows: self.service(parallelism, rows) * correction.contention,
            candidate,
            traffic,
            requests,
            seed=1,
            extra_us=correction.overhead_us,
        )
        latencies = latencies_ms(run, correction.overhead_us)
        return Prediction(
            candidate=candidate,
            requests=len(latencies),
            throughput_rows_per_s=sum(answer.request.rows for answer in run.served) / int(run.makespan) * 1e9,
            percentiles_ms={p: float(np.percentile(latencies, p, method="inverted_cdf")) for p in (50, 90, 95, 99)},
            late=0.0,
            rows_per_execution=run.rows_per_execution,
            queue_share=0.0,
            busy=0.0,
            sizes=run.sizes,
        )

    def contention(self, trial: Trial, *, rows: int) -> float:
        del rows
        parallelism, counted = Parallelism.of(trial.candidate), trial.counted
        expected = sum(count * self.service(parallelism, rows) for rows, count in counted.batches.items())
        return sum(counted.batches_ns.values()) / 1e3 / expected

    def outside_us(self, trial: Trial) -> float:
        del trial
        return OUTSIDE_US


class Interrupted(Exception):  # noqa: N818
    """Somebody pressed Ctrl-C."""


@dataclass(kw_only=True)
class SimulatedBench:
    """Measures by simulation with the true service times; after `stop_after` trials it is interrupted."""

    service: Service
    sla: LatencyTarget
    stop_after: int | None = None
    measured: list[tuple[Candidate, str, int, str]] = field(default_factory=list)
    retired: list[Candidate] = field(default_factory=list)

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        if self.stop_after is not None and len(self.measured) >= self.stop_after:
            raise Interrupted
        self.measured.append((candidate, stage, round, str(traffic)))
        parallelism = Parallelism.of(candidate)
        # No candidate answers 1,300 requests a second; an open load needs no more than come in that time.
        most_per_s = 1.2 * traffic.rate_per_s if traffic.open else 1_300
        requests = int(most_per_s * (seconds + WARM_UP_S)) + 100
        run = outcome(self.service, candidate, traffic, requests, seed=10 + len(self.measured))
        begin = int(WARM_UP_S * 1e9)
        end = begin + int(seconds * 1e9)
        inside = [answer for answer in run.served if begin <= int(answer.request.at) < end]
        latencies = [int(answer.latency) / 1e3 + OUTSIDE_US for answer in inside]
        late = sum(us > self.sla.latency_ms * 1e3 for us in latencies)
        done = sum(answer.request.rows for answer in run.served if begin <= int(answer.at) < end)
        spent = sum(latencies) - OUTSIDE_US * len(latencies)
        sizes = run.sizes
        counted = Counters(
            **vars(NOTHING)
            | {
                "requests": len(latencies),
                "rows": sum(rows * count for rows, count in sizes.items()),
                "executions": sum(sizes.values()),
                "queue_ns": int(spent * 1e3),
                "batches": sizes,
                "batches_ns": {
                    rows: int(count * self.service(parallelism, rows) * 1e3) for rows, count in sizes.items()
                },
            }
        )
        return Trial(
            candidate=candidate,
            stage=stage,
            round=round,
            started_at="2026-01-01T00:00:00+00:00",
            load=str(traffic),
            seconds=seconds,
            throughput_rows_per_s=done / seconds,
            offered_per_s=traffic.rate_per_s or None,
            requests=len(latencies),
            late=late,
            late_sends=0,
            not_sent=0,
            failed=0,
            passed=judge(len(latencies), late, 1 - self.sla.percent / 100),
            latencies_us=tuple(latencies),
            due_s=tuple((int(answer.request.at) - begin) / 1e9 for answer in inside),
            stages_us={},
            counted=counted,
            cores_busy=0.5,
            load_average=0.1,
            command=("python", "-m", "perf.tune", "invented"),
        )

    def retire(self, candidate: Candidate) -> None:
        self.retired.append(candidate)


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
    sla, traffic = LatencyTarget(latency_ms=p99_ms), Traffic.parse(load)
    searched = replace(space(CONFIG, largest=16, cores=2, gpu=False), sizes=sizes)
    candidates = searched.candidates(believed)
    study = Study(
        model=CONFIG.name,
        config_name="default",
        load=load,
        sla=sla,
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
    bench = SimulatedBench(service=true or believed, sla=sla, stop_after=stop_after)
    screen = Screen(
        simulator=InventedSimulator(service=believed),
        traffic=traffic,
        goal=Goal(objective=objective, target=sla, open=traffic.open),
        coarse=400,
        fine=2_000 if objective == "goodput" else 1_000,
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
