"""The record of a full grid: every candidate measured once; one JSON file for each model and load."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Trial
from perf.stats.dependence import design_effect
from perf.stats.percentile import percentile
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

# Shares at which latencies are recorded, closer together where targets are.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.985, 0.99, 0.992, 0.995, 0.999, 1.0)


class GridError(Mistake):
    """A grid of another load or machine, or a judgement with nothing to compare."""


@dataclass(frozen=True, kw_only=True)
class GridTrial:
    """One trial: latencies in milliseconds at `SHARES` of the requests, infinite (null) if they got no answer.

    The requests are worth `requests` / `design_effect` independent ones for a p99; 1 in older records, which did not
    count it.
    """

    candidate: Candidate
    stage: str
    round: int
    started_at: str
    seconds: float
    throughput_rows_per_s: float
    offered_per_s: float | None
    requests: int
    late: int
    latencies_ms: tuple[float, ...]
    rows_per_execution: float
    cores_busy: float
    load_average: float
    faults: tuple[str, ...] = ()
    design_effect: float = 1.0

    @classmethod
    def of(cls, trial: Trial) -> "GridTrial":
        """The trial without its single requests."""
        latencies_ms = [float(percentile(trial.latencies_us, 100 * share)) / 1e3 for share in SHARES]
        return cls(
            candidate=trial.candidate,
            stage=trial.stage,
            round=trial.round,
            started_at=trial.started_at,
            seconds=round(trial.seconds, 3),
            throughput_rows_per_s=round(trial.throughput_rows_per_s, 2),
            offered_per_s=trial.offered_per_s,
            requests=trial.requests,
            late=trial.late,
            latencies_ms=tuple(round(ms, 3) for ms in latencies_ms),
            rows_per_execution=round(trial.counted.rows_per_execution, 2),
            cores_busy=round(trial.cores_busy, 3),
            load_average=round(trial.load_average, 2),
            faults=trial.faults,
            design_effect=round(design_effect(trial.latencies_us, 0.01), 3),
        )

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latencies."""
        return self.latencies_ms[SHARES.index(0.99)]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Trials in the order of their measurement; `planned` is the number of candidates."""

    KIND: ClassVar[str] = "grid"
    FORMAT: ClassVar[int] = 1
    model: str
    load: str
    rows: int
    machine: Machine
    command: tuple[str, ...]
    seed: int
    planned: int
    points: tuple[GridTrial, ...] = ()

    def of(self, candidate: Candidate) -> GridTrial | None:
        """The trial of a candidate; None if it is not measured yet."""
        return next((point for point in self.points if point.candidate == candidate), None)

    def best(self, p99_ms: float) -> GridTrial | None:
        """The trial with the highest throughput within a target; None if no trial is within it."""
        within = [point for point in self.points if point.p99_ms <= p99_ms and not point.faults]
        return max(within, key=lambda trial: trial.throughput_rows_per_s, default=None)

    def write(self, path: Path) -> Path:
        """Write the file, whole or not at all."""
        return file.write(self, path)


@dataclass(frozen=True, kw_only=True)
class LaterRounds:
    """Rounds of the tuned and the current configuration on another day; `stage` names the configuration."""

    KIND: ClassVar[str] = "later rounds"
    FORMAT: ClassVar[int] = 1
    model: str
    load: str
    points: tuple[GridTrial, ...]
