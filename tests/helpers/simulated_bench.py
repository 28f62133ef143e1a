"""A bench that is the batcher's simulation itself: the truth that a search must find, under invented service times.

`Modelled` is what the search believes, `SimulatedBench` what it measures; the two differ where a test wants them to.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.batcher.simulation import Outcome, simulate
from perf.records.candidate import Candidate
from perf.records.study import Prediction, Sla, Study, Trial
from perf.records.traffic import Traffic
from perf.stats.sla import judge
from perf.tune.belief import Terms
from perf.tune.budget import Budget
from perf.tune.goal import Goal
from perf.tune.journal import WARM_UP_S, Journal
from perf.tune.screen import Screen
from perf.tune.search import Search
from perf.tune.space import Pair, space
from serve.management.statistics import Counters
from tests.perf.report.test_summary import MACHINE, NOTHING

CONFIG = ModelConfig(
    name="invented", max_batch_size=8, instance_group=[ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_CPU)]
)
CONFIG.dynamic_batching.SetInParent()
OUTSIDE_US = 300.0

Service = Callable[[Pair, int], float]
"""Microseconds of one execution of so many rows."""


def accelerator(pair: Pair, rows: int) -> float:
    """20 ms and 0.5 ms a row, however many instances there are."""
    del pair
    return 20_000 + 500 * rows


def shared_cores(pair: Pair, rows: int) -> float:
    """6 ms and 0.7 ms a row; two instances are each 1.7 times as slow."""
    return (6_000 + 700 * rows) * (1.7 if pair.instances > 1 else 1.0)


def outcome(
    service: Service, candidate: Candidate, traffic: Traffic, requests: int, seed: int, extra_us: float = 0.0
) -> Outcome:
    """One run of the batcher."""
    pair = Pair.of(candidate)
    load = traffic.simulated(requests, turnaround=int((OUTSIDE_US + extra_us) * 1e3), seed=seed)
    return simulate(candidate.rules(CONFIG), lambda rows: int(service(pair, rows) * 1e3), load)


def latencies_ms(run: Outcome, extra_us: float = 0.0) -> list[float]:
    """As the client sees them."""
    return [int(one.latency) / 1e6 + (OUTSIDE_US + extra_us) / 1e3 for one in run.served]


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """The simulation with the service times that are believed in."""

    service: Service

    def predict(self, candidate: Candidate, traffic: Traffic, terms: Terms, *, requests: int) -> Prediction:
        run = outcome(
            lambda pair, rows: self.service(pair, rows) * terms.contention,
            candidate,
            traffic,
            requests,
            seed=1,
            extra_us=terms.overhead_us,
        )
        found = latencies_ms(run, terms.overhead_us)
        return Prediction(
            candidate=candidate,
            requests=len(found),
            throughput_rows_per_s=sum(one.request.rows for one in run.served) / int(run.makespan) * 1e9,
            percentiles_ms={p: float(np.percentile(found, p, method="inverted_cdf")) for p in (50, 90, 95, 99)},
            late=0.0,
            rows_per_execution=run.rows_per_execution,
            queue_share=0.0,
            busy=0.0,
            sizes=run.sizes,
        )

    def contention(self, trial: Trial, *, rows: int) -> float:
        del rows
        pair, counted = Pair.of(trial.candidate), trial.counted
        expected = sum(count * self.service(pair, rows) for rows, count in counted.batches.items())
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
    sla: Sla
    stop_after: int | None = None
    measured: list[tuple[Candidate, str, int, str]] = field(default_factory=list)
    retired: list[Candidate] = field(default_factory=list)

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        if self.stop_after is not None and len(self.measured) >= self.stop_after:
            raise Interrupted
        self.measured.append((candidate, stage, round, str(traffic)))
        run = outcome(
            self.service, candidate, traffic, int(1_300 * (seconds + WARM_UP_S)), seed=10 + len(self.measured)
        )
        begin = int(WARM_UP_S * 1e9)
        end = begin + int(seconds * 1e9)
        inside = [one for one in run.served if begin <= int(one.request.at) < end]
        found = [int(one.latency) / 1e3 + OUTSIDE_US for one in inside]
        late = sum(us > self.sla.latency_ms * 1e3 for us in found)
        done = sum(one.request.rows for one in run.served if begin <= int(one.at) < end)
        spent = sum(found) - OUTSIDE_US * len(found)
        sizes = run.sizes
        counted = Counters(
            **vars(NOTHING)
            | {
                "requests": len(found),
                "rows": sum(rows * count for rows, count in sizes.items()),
                "executions": sum(sizes.values()),
                "queue_ns": int(spent * 1e3),
                "batches": sizes,
                "batches_ns": {
                    rows: int(count * self.service(Pair.of(candidate), rows) * 1e3) for rows, count in sizes.items()
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
            requests=len(found),
            late=late,
            late_sends=0,
            not_sent=0,
            failed=0,
            passed=judge(len(found), late, 1 - self.sla.percent / 100),
            latencies_us=tuple(found),
            due_s=tuple((int(one.request.at) - begin) / 1e9 for one in inside),
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
    largest: int = 16,
    stop_after: int | None = None,
) -> Search:
    """A search over powers of two up to `largest`, five delays and two instances, with its record at `path`."""
    sla, traffic = Sla(latency_ms=p99_ms), Traffic.parse(load)
    searched = space(CONFIG, largest=largest, cores=2, gpu=False)
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
        space=searched.tried(candidates),
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
        simulator=Modelled(service=believed),
        traffic=traffic,
        goal=Goal(objective=objective, sla=sla, open=traffic.open),
        coarse=400,
        fine=3_000 if objective == "goodput" else 1_000,
    )
    return Search(
        candidates=candidates,
        screen=screen,
        journal=Journal(study, path, bench),
        budget=Budget(profile_points=2, profile_s=30.0),
    )


def bench_of(search: Search) -> SimulatedBench:
    """Where a search measures."""
    bench = search.journal.bench
    assert isinstance(bench, SimulatedBench)
    return bench
