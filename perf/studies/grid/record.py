"""The record of a full grid: every candidate measured once; one JSON file for each model and load."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from perf.measure import service_profile
from perf.records import file, target_verdict
from perf.records.candidate import Candidate
from perf.records.study import Study, Trial
from perf.records.traffic import Traffic
from perf.stats import rounds
from perf.stats.dependence import design_effect
from perf.stats.interval import LEVEL, Interval
from perf.stats.latency_target import LatencyTarget, TrialCount, judge_trials
from perf.stats.looks import Looks
from perf.stats.percentile import percentile
from perf.stats.verdict import SAME, Verdict, verdict
from perf.tune.study_log import WARM_UP_S, Bench, points_of
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

# Shares at which latencies are recorded, closer together where targets are.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.985, 0.99, 0.992, 0.995, 0.999, 1.0)
TUNED, BEST = "tuned", "best of the grid"
# Numbers of rounds after which a judgement ends if it is certain, and the seconds of a trial.
LOOKS, SECONDS = (5, 10, 20), 3.0
# The share of the grid's best that a choice must surely reach.
SHARE = 0.97
# What its search may cost: points, seconds of load, and seconds after the ramps with everything that is not load.
TRIALS, LIVE_S, WALL_S = 13, 90.0, 100.0


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


@dataclass(frozen=True, kw_only=True)
class GridJudgement:
    """The trials of both, and the cost of the search.

    `live_points` and `live_s` are those of the study and the ramps of its profile. `wall_s` is how long the
    search took after the ramps. `looks` are the planned numbers of rounds; older records have neither, and were planned
    with the rounds that they have. If the tuner and the grid chose the same configuration, it is measured as `TUNED`
    only, and the ratio is 1. The study's current configuration is measured too if that was asked for and it is neither
    of the two.
    """

    KIND: ClassVar[str] = "judgement"
    FORMAT: ClassVar[int] = 1
    study: str
    model: str
    load: str
    sla: LatencyTarget
    tuned: Candidate
    best: Candidate
    best_once: GridTrial
    live_points: int
    live_s: float
    points: tuple[GridTrial, ...]
    wall_s: float | None = None
    looks: tuple[int, ...] = ()

    def of(self, stage: str) -> list[GridTrial]:
        """The trials of one side, by round."""
        return sorted((point for point in self.points if point.stage == stage), key=lambda trial: trial.round)

    @property
    def ratio(self) -> Interval:
        """Throughput of the choice over that of the grid's best, round by round; exactly 1 if they are one."""
        tuned, best = ([trial.throughput_rows_per_s for trial in self.of(stage)] for stage in (TUNED, BEST))
        level = Looks(at=self.looks).level_at(len(tuned)) if self.looks else LEVEL
        if not best:
            return Interval(value=1.0, low=1.0, high=1.0, level=level, count=len(tuned), method="one configuration")
        return rounds.paired(tuned, best, level=level)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the ratio; as good as the grid's best is the same within 1 / `SHARE`."""
        margin = 1 / SHARE - 1
        if not self.of(BEST):
            return Verdict(word=SAME, margin=margin)
        return verdict(self.ratio, more_is_better=True, margin=margin)

    @property
    def finished(self) -> bool:
        """Whether it is certain at a planned look, or at its last one; older records are."""
        count = len(self.of(TUNED))
        certain = count in self.looks and (self.verdict.certain or self.ratio.low >= SHARE)
        return not self.looks or certain or count >= self.looks[-1]

    @property
    def misses(self) -> bool:
        """Whether the choice surely misses the target, by the requests of all its rounds."""
        counts = [
            TrialCount(requests=trial.requests, late=trial.late, design_effect=trial.design_effect)
            for trial in self.of(TUNED)
        ]
        return judge_trials(counts, self.sla, looked=True).passed is False

    @property
    def violations(self) -> int:
        """Rounds in which the p99 of the choice was over the target."""
        return sum(trial.p99_ms > self.sla.latency_ms for trial in self.of(TUNED))

    @property
    def passed(self) -> bool:
        """Whether the choice is surely good enough and its search was cheap enough."""
        cheap = self.live_points <= TRIALS and self.live_s <= LIVE_S and (self.wall_s or 0.0) <= WALL_S
        return self.ratio.low >= SHARE and not self.misses and cheap


def judge(
    study: Study,
    grid: Grid,
    folder: Path,
    bench: Bench,
    *,
    looks: tuple[int, ...] = LOOKS,
    seconds: float = SECONDS,
    progress: Callable[[str], None],
) -> GridJudgement:
    """Measure the study's choice and the best of the grid again; the rounds on disk are not repeated.

    It ends at one of the `looks`, numbers of rounds; a trial takes `seconds`.
    """
    best = grid.best(study.sla.latency_ms)
    if study.chosen is None or best is None:
        which = "the study chose no configuration" if study.chosen is None else "the grid has no configuration"
        raise GridError(
            f"{study.model}, {study.load}: {which} that meets p99 <= {study.sla.latency_ms:g} ms, so there is nothing "
            "to compare. Set a longer target, or measure again on a quiet machine."
        )
    name = f"{grid.model}.{grid.load.replace(':', '-')}.p99-{study.sla.latency_ms:g}ms.judged.json"
    path = folder / name
    judged = file.read(path, GridJudgement) if path.exists() else _empty(study, best, folder, looks)
    traffic = Traffic.of_record(study.load, rows=grid.rows)
    sides: dict[Candidate, str] = {}
    for stage, candidate in ((TUNED, judged.tuned), (BEST, judged.best)):
        sides.setdefault(candidate, stage)
    while not judged.finished:
        judged = _with_round(judged, sides, bench, traffic, seconds, progress)
        file.write(judged, path)
    return judged


def _empty(study: Study, best: GridTrial, folder: Path, looks: tuple[int, ...]) -> GridJudgement:
    """The judgement without rounds."""
    assert study.chosen is not None
    profile_points, profile_s = _profile_cost(study, folder)
    return GridJudgement(
        study=f"{study.model} {study.load}, {study.objective}",
        model=study.model,
        load=study.load,
        sla=study.sla,
        tuned=study.chosen,
        best=best.candidate,
        best_once=best,
        live_points=points_of(study.trials) + profile_points,
        live_s=round(sum(trial.seconds + WARM_UP_S for trial in study.trials) + profile_s, 1),
        points=(),
        wall_s=study.steps[-1].at_s if study.steps else None,
        looks=looks,
    )


def _with_round(
    judged: GridJudgement,
    sides: Mapping[Candidate, str],
    bench: Bench,
    traffic: Traffic,
    seconds: float,
    progress: Callable[[str], None],
) -> GridJudgement:
    """The judgement with one more round; the order alternates, so that no side always comes first."""
    number, measured = len(judged.of(TUNED)) + 1, []
    for candidate, stage in list(sides.items())[:: 1 if number % 2 else -1]:
        progress(f"round {number} of at most {judged.looks[-1]}, {stage}: {candidate}")
        trial = bench.measure(candidate, traffic, stage=stage, round=number, seconds=seconds)
        measured.append(counted(trial, judged.sla))
    return dataclasses.replace(judged, points=(*judged.points, *measured))


def lines(judged: GridJudgement) -> Iterator[str]:
    """The judgement in sentences, for a terminal."""
    tuned, best = judged.of(TUNED), judged.of(BEST)
    passed = "passed" if judged.passed else "NOT passed"
    yield f"{judged.model}, {judged.load}, p99 <= {judged.sla.latency_ms:g} ms: {passed}"
    once = judged.best_once
    yield (
        f"  the grid's best: {judged.best}, {once.throughput_rows_per_s:.4g} rows/s in its one trial"
        + (f", {_mean(best):.4g} measured again" if best else ", which the tuner chose too")
    )
    yield (
        f"  the tuner's:     {judged.tuned}, {_mean(tuned):.4g} rows/s, {judged.ratio} of it in {len(tuned)} rounds: "
        f"{judged.verdict}"
    )
    worst = max(point.p99_ms for point in tuned)
    yield f"  p99 of the tuner's in its rounds: at most {worst:.4g} ms, {judged.violations} over the target"
    wall = "" if judged.wall_s is None else f"; {judged.wall_s:.0f} s in all after the ramps"
    yield f"  cost: {judged.live_points} points and {judged.live_s:.0f} s of load, with the profile's ramps{wall}"


def _profile_cost(study: Study, folder: Path) -> tuple[int, float]:
    ramps = [service_profile.load(folder / name) for name in study.profiles]
    return len(ramps), sum(level.seconds for ramp in ramps for level in ramp.levels)


def counted(trial: Trial, target: LatencyTarget) -> GridTrial:
    """The trial with the late requests and the design effect for the study's target."""
    count = target_verdict.count(trial, target)
    return dataclasses.replace(GridTrial.of(trial), late=count.late, design_effect=count.design_effect)


def _mean(trials: list[GridTrial]) -> float:
    return float(np.mean([trial.throughput_rows_per_s for trial in trials]))
