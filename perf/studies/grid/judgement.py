"""A tuner's choice compared with the best of a full grid, both measured again in turn.

The best of sixty noisy measurements is partly lucky (the winner's curse), so its figure in the grid is too high. Both
are measured again, A B A B, and the ratio is that of these rounds.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from perf.measure import service_profile
from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Study, Trial
from perf.records.traffic import Traffic
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.latency_target import LatencyTarget
from perf.studies.grid.record import Grid, GridError, GridTrial
from perf.tune.study_log import WARM_UP_S, Bench

TUNED, BEST = "tuned", "best of the grid"
ROUNDS, SECONDS = 5, 3.0
# The share of the grid's best that a choice must reach, and the most trials and seconds of load of its search.
SHARE, TRIALS, LIVE_S = 0.97, 13, 90.0


@dataclass(frozen=True, kw_only=True)
class GridJudgement:
    """The trials of both, and the cost of the search.

    `live_points` and `live_s` count the trials of the study and the ramps of its profile. If the tuner and the grid
    chose the same configuration, it is measured as `TUNED` only, and the ratio is 1.
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

    def of(self, stage: str) -> list[GridTrial]:
        """The trials of one side, by round."""
        return sorted((point for point in self.points if point.stage == stage), key=lambda trial: trial.round)

    @property
    def ratio(self) -> Interval:
        """Throughput of the choice over that of the grid's best, round by round."""
        tuned = [trial.throughput_rows_per_s for trial in self.of(TUNED)]
        best = [trial.throughput_rows_per_s for trial in self.of(BEST)] or tuned
        return rounds.paired(tuned, best)

    @property
    def violations(self) -> int:
        """Rounds in which the p99 of the choice was over the target."""
        return sum(trial.p99_ms > self.sla.latency_ms for trial in self.of(TUNED))

    @property
    def passed(self) -> bool:
        """Whether the choice is good enough and its search was cheap enough."""
        cheap = self.live_points <= TRIALS and self.live_s <= LIVE_S
        return self.ratio.value >= SHARE and not self.violations and cheap


def judge(study: Study, grid: Grid, folder: Path, bench: Bench, *, progress: Callable[[str], None]) -> GridJudgement:
    """Measure the study's choice and the best of the grid again; a judgement on disk is returned as it is."""
    best = grid.best(study.sla.latency_ms)
    if study.chosen is None or best is None:
        which = "the study chose no configuration" if study.chosen is None else "the grid has no configuration"
        raise GridError(
            f"{study.model}, {study.load}: {which} that meets p99 <= {study.sla.latency_ms:g} ms, so there is nothing "
            "to compare. Set a longer target, or measure again on a quiet machine."
        )
    name = f"{grid.model}.{grid.load.replace(':', '-')}.p99-{study.sla.latency_ms:g}ms.judged.json"
    path = folder / name
    if path.exists():
        return file.read(path, GridJudgement)
    sides = [(TUNED, study.chosen), (BEST, best.candidate)][: 1 if study.chosen == best.candidate else 2]
    measured: list[GridTrial] = []
    traffic = Traffic.parse(study.load, rows=grid.rows)
    for number in range(1, ROUNDS + 1):
        # The order alternates, so that neither side always comes first.
        for stage, candidate in sides if number % 2 else sides[::-1]:
            progress(f"round {number} of {ROUNDS}, {stage}: {candidate}")
            trial = bench.measure(candidate, traffic, stage=stage, round=number, seconds=SECONDS)
            measured.append(GridTrial.of(_with_late(trial, study.sla)))
    profile_points, profile_s = _profile_cost(study, folder)
    judged = GridJudgement(
        study=f"{study.model} {study.load}, {study.objective}",
        model=study.model,
        load=study.load,
        sla=study.sla,
        tuned=study.chosen,
        best=best.candidate,
        best_once=best,
        live_points=len(study.trials) + profile_points,
        live_s=round(sum(trial.seconds + WARM_UP_S for trial in study.trials) + profile_s, 1),
        points=tuple(measured),
    )
    file.write(judged, path)
    return judged


def lines(judged: GridJudgement) -> Iterator[str]:
    """The judgement in sentences, for a terminal."""
    tuned, best = judged.of(TUNED), judged.of(BEST)
    verdict = "passed" if judged.passed else "NOT passed"
    yield f"{judged.model}, {judged.load}, p99 <= {judged.sla.latency_ms:g} ms: {verdict}"
    once = judged.best_once
    yield (
        f"  the grid's best: {judged.best}, {once.throughput_rows_per_s:.4g} rows/s in its one trial"
        + (f", {_mean(best):.4g} measured again" if best else ", which the tuner chose too")
    )
    yield f"  the tuner's:     {judged.tuned}, {_mean(tuned):.4g} rows/s, {judged.ratio} of it in {len(tuned)} rounds"
    worst = max(point.p99_ms for point in tuned)
    yield f"  p99 of the tuner's in its rounds: at most {worst:.4g} ms, {judged.violations} over the target"
    yield f"  cost: {judged.live_points} live trials and {judged.live_s:.0f} s of load, with the profile's ramps"


def _profile_cost(study: Study, folder: Path) -> tuple[int, float]:
    ramps = [service_profile.load(folder / name) for name in study.profiles]
    return len(ramps), sum(level.seconds for ramp in ramps for level in ramp.levels)


def _with_late(trial: Trial, sla: LatencyTarget) -> Trial:
    """The trial with its late requests counted by the study's target."""
    late = int(np.sum(np.asarray(trial.latencies_us) > sla.latency_ms * 1e3))
    return dataclasses.replace(trial, late=late)


def _mean(trials: list[GridTrial]) -> float:
    return float(np.mean([trial.throughput_rows_per_s for trial in trials]))
