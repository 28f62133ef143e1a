"""Invented worlds for the search: models whose true figures follow a formula, which the search believes wrongly.

A world is drawn from its seed. Its formula takes microseconds where a simulation takes milliseconds, so that a test can
search some hundred worlds. Measurements have noise: one factor for each trial, and another for each request's batch.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from simulated_bench import CONFIG, OUTSIDE_US, made_trial, new_study

from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction, Trial
from perf.records.traffic import Traffic
from perf.tune.goal import Goal
from perf.tune.screening import Screen
from perf.tune.search import Search
from perf.tune.simulator import Correction
from perf.tune.space import Parallelism, space
from perf.tune.study_log import Budget, StudyLog
from serve.management.statistics import Counters

SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Formula:
    """The steady state of a closed loop of `clients`: what every candidate does, in microseconds and rows per second.

    An execution takes `fixed_us` and `row_us` for each row, rounded up to whole `steps` of rows, times `shared` while
    two instances run. `tail` is how far p99 is above the mean latency, by instances.
    """

    clients: int
    fixed_us: float
    row_us: float
    steps: int
    shared: float
    tail: tuple[float, float]

    def service_us(self, parallelism: Parallelism, rows: int) -> float:
        """Microseconds of an execution."""
        paid = -(-rows // self.steps) * self.steps
        return (self.fixed_us + self.row_us * paid) * (self.shared if parallelism.instances > 1 else 1.0)

    def rows(self, candidate: Candidate) -> int:
        """Rows of an execution: the share of the clients that waits for it, or a full batch."""
        shares = candidate.instances + (0 if candidate.delay_us else 1)
        return max(1, min(candidate.max_batch_size, self.clients // shares))

    def rate(self, candidate: Candidate, stretch: float = 1.0, overhead_us: float = 0.0) -> float:
        """Rows per second."""
        rows = self.rows(candidate)
        full = candidate.max_batch_size * candidate.instances <= self.clients
        idle_us = 0.0 if full else min(candidate.delay_us, OUTSIDE_US + overhead_us) + candidate.delay_us * 0.5
        busy_us = self.service_us(Parallelism.of(candidate), rows) * stretch
        # A client is away between two requests; with few of them that leaves instances without work.
        slowest_us = max(
            busy_us + idle_us, (busy_us + OUTSIDE_US + overhead_us) * candidate.instances * rows / self.clients
        )
        return candidate.instances * rows / slowest_us * 1e6

    def p99_ms(self, candidate: Candidate, stretch: float = 1.0, overhead_us: float = 0.0) -> float:
        """99th percentile of the latency: by Little's law, and the tail above it."""
        mean_ms = self.clients / self.rate(candidate, stretch, overhead_us) * 1e3
        return mean_ms * (1 + self.tail[candidate.instances > 1])


@dataclass(frozen=True, kw_only=True)
class InventedWorld:
    """What is `true`, what the simulation believes, the latency target, and the noise of a trial."""

    seed: int
    true: Formula
    believed: Formula
    target: LatencyTarget
    noise: float

    @classmethod
    def drawn(cls, seed: int, *, noise: float = 0.01, wrong: float = 0.15) -> "InventedWorld":
        """A world whose simulation is wrong by about the share `wrong`; its target is met by some candidate."""
        rng = np.random.default_rng(seed)
        true = Formula(
            clients=int(rng.integers(6, 49)),
            fixed_us=float(np.exp(rng.uniform(math.log(1_000), math.log(30_000)))),
            row_us=float(np.exp(rng.uniform(math.log(50), math.log(3_000)))),
            steps=int(rng.choice([1, 1, 4, 8])),
            shared=float(rng.uniform(1.0, 2.1)),
            tail=(float(rng.uniform(0.03, 0.5)), float(rng.uniform(0.03, 0.5))),
        )
        off = np.exp(rng.normal(0, wrong, 6))
        believed = Formula(
            clients=true.clients,
            fixed_us=true.fixed_us * off[0],
            row_us=true.row_us * off[1],
            steps=true.steps,
            shared=max(1.0, true.shared * off[2]),
            tail=(true.tail[0] * off[3] ** 2, true.tail[1] * off[4] ** 2),
        )
        least_ms = min(map(true.p99_ms, candidates(true)))
        target = LatencyTarget(latency_ms=least_ms * float(rng.uniform(1.1, 2.0)) / 0.95)
        return cls(seed=seed, true=true, believed=believed, target=target, noise=noise)

    @cached_property
    def goal(self) -> Goal:
        return Goal(objective="throughput", target=self.target)

    def search(self, path: Path) -> Search:
        """A search in this world with its record at `path`."""
        proposed = candidates(self.believed)
        load = f"closed:{self.true.clients}"
        study = new_study(proposed, load, self.target, "throughput")
        return Search(
            candidates=proposed,
            screen=Screen(simulator=FormulaSimulator(self.believed), traffic=Traffic.parse(load), goal=self.goal),
            log=StudyLog(study, path, FormulaBench(world=self)),
            budget=Budget(profile_points=2, profile_s=30.0),
        )


def candidates(formula: Formula) -> tuple[Candidate, ...]:
    """What the tuner would search for this model, the current configuration first."""
    searched = space(CONFIG, largest=SIZES[-1], reached=formula.clients, cores=2, gpu=False)
    return searched.candidates(formula.service_us)


@dataclass(frozen=True)
class FormulaSimulator:
    """Predicts with what the world believes."""

    believed: Formula

    def predict(self, candidate: Candidate, traffic: Traffic, correction: Correction, *, requests: int) -> Prediction:
        inputs = correction.contention, correction.overhead_us
        p99 = self.believed.p99_ms(candidate, *inputs)
        return Prediction(
            candidate=candidate,
            requests=requests,
            throughput_rows_per_s=self.believed.rate(candidate, *inputs),
            percentiles_ms={50: p99 / 2, 90: 0.9 * p99, 95: 0.95 * p99, 99: p99},
            late=0.0,
            rows_per_execution=self.believed.rows(candidate),
            queue_share=0.0,
            busy=1.0,
            sizes={self.believed.rows(candidate): 100},
        )

    def contention(self, trial: Trial, *, rows: int) -> float:
        (size, count), (_, total_ns) = *trial.counted.batches.items(), *trial.counted.batches_ns.items()
        return total_ns / count / 1e3 / self.believed.service_us(Parallelism.of(trial.candidate), size)

    def outside_us(self, trial: Trial) -> float:
        return OUTSIDE_US


@dataclass(kw_only=True)
class FormulaBench:
    """Measures what is true, with noise."""

    world: InventedWorld
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.world.seed, 1])

    def prepare(self, candidate: Candidate) -> None:
        pass

    def retire(self, candidate: Candidate) -> None:
        pass

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        true, slower = self.world.true, math.exp(self.rng.normal(0, self.world.noise))
        rate, rows = true.rate(candidate) / slower, true.rows(candidate)
        # The requests of one batch are answered together. Powers of two are quick to take the design effect of.
        batches = 2 ** int(math.log2(max(8, rate * seconds / rows)))
        tail = true.tail[candidate.instances > 1]
        spread = np.exp(self.rng.normal(0, math.log1p(tail) / 2.326, batches))
        latencies = np.repeat(true.clients / rate * 1e6 * spread, rows)
        late = int(np.sum(latencies > self.world.target.latency_ms * 1e3))
        service_ns = int(true.service_us(Parallelism.of(candidate), rows) * slower * 1e3)
        counted = replace(
            Counters.none(),
            requests=len(latencies),
            rows=len(latencies),
            executions=batches,
            queue_ns=int(len(latencies) * max(0.0, true.clients / rate * 1e6 - OUTSIDE_US) * 1e3),
            batches={rows: batches},
            batches_ns={rows: batches * service_ns},
        )
        trial = made_trial(candidate, traffic, counted, latencies.tolist(), rate=rate, late=late, seconds=seconds)
        return replace(trial, stage=stage, round=round)
