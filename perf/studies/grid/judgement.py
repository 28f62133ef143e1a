"""A tuner's choice against the best of a full grid, both measured again in turn, since single measurements flatter.

The best of sixty noisy measurements is the luckiest of the good ones (the winner's curse), so its own figure in the
grid is not what the choice is held against: both are measured anew, A B A B, and the ratio is that of the rounds.
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
from perf.stats import bootstrap
from perf.stats.bootstrap import Interval
from perf.stats.latency_target import LatencyTarget
from perf.studies.grid.record import Grid, GridError, GridTrial
from perf.tune.study_log import WARM_UP_S, Bench

TUNED, BEST = "tuned", "best of the grid"
ROUNDS, SECONDS = 5, 3.0
# The share of the grid's best that a choice must reach, with so many points and seconds.
SHARE, POINTS, LIVE_S = 0.97, 13, 90.0


@dataclass(frozen=True, kw_only=True)
class GridJudgement:
    """Points of both in `rounds`, and what the search had cost; all else follows from them.

    `live_points` and `live_s` hold the ramps of the profile too. Where tuner and grid chose the same configuration it
    is measured as `TUNED` only, and the ratio is 1.
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
        """The points of one side, by round."""
        return sorted((point for point in self.points if point.stage == stage), key=lambda trial: trial.round)

    @property
    def ratio(self) -> Interval:
        """Throughput of the choice over that of the grid's best, over the rounds that both met."""
        tuned = [trial.throughput_rows_per_s for trial in self.of(TUNED)]
        best = [trial.throughput_rows_per_s for trial in self.of(BEST)] or tuned
        return bootstrap.paired(tuned, best)

    @property
    def violations(self) -> int:
        """Rounds of the choice in which its p99 was over the target."""
        return sum(trial.p99_ms > self.sla.latency_ms for trial in self.of(TUNED))

    @property
    def passed(self) -> bool:
        """Whether the choice is as good as was promised, and was as cheap."""
        cheap = self.live_points <= POINTS and self.live_s <= LIVE_S
        return self.ratio.value >= SHARE and not self.violations and cheap


def judge(study: Study, grid: Grid, folder: Path, bench: Bench, *, told: Callable[[str], None]) -> GridJudgement:
    """Measure again what the study chose and what the grid has as its best; what is on disk is not measured again."""
    best = grid.best(study.sla.latency_ms)
    if study.chosen is None or best is None:
        who = "the study chose none" if study.chosen is None else "the grid has none"
        raise GridError(
            f"{study.model}, {study.load}: {who} that meets p99 <= {study.sla.latency_ms:g} ms, so there is nothing to "
            "compare. Ask for a longer target, or measure again on a quiet machine."
        )
    name = f"{grid.model}.{grid.load.replace(':', '-')}.p99-{study.sla.latency_ms:g}ms.judged.json"
    path = folder / name
    if path.exists():
        return file.read(path, GridJudgement)
    wanted = [(TUNED, study.chosen), (BEST, best.candidate)][: 1 if study.chosen == best.candidate else 2]
    measured: list[GridTrial] = []
    traffic = Traffic.parse(study.load, rows=grid.rows)
    for number in range(1, ROUNDS + 1):
        # The order is turned round every time, so that neither always comes after the other.
        for stage, candidate in wanted if number % 2 else wanted[::-1]:
            told(f"round {number} of {ROUNDS}, {stage}: {candidate}")
            trial = bench.measure(candidate, traffic, stage=stage, round=number, seconds=SECONDS)
            measured.append(GridTrial.of(_judged(trial, study.sla)))
    profile_points, profile_s = _profile_cost(study, folder)
    found = GridJudgement(
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
    file.write(found, path)
    return found


def lines(judged: GridJudgement) -> Iterator[str]:
    """The judgement in words, for a terminal."""
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
    yield f"  cost: {judged.live_points} live points and {judged.live_s:.0f} s of load, the profile's ramps among them"


def _profile_cost(study: Study, folder: Path) -> tuple[int, float]:
    ramps = [service_profile.load(folder / name) for name in study.profiles]
    return len(ramps), sum(level.seconds for ramp in ramps for level in ramp.levels)


def _judged(trial: Trial, sla: LatencyTarget) -> Trial:
    """With the late ones counted by the study's own target."""
    late = int(np.sum(np.asarray(trial.latencies_us) > sla.latency_ms * 1e3))
    return dataclasses.replace(trial, late=late)


def _mean(points: list[GridTrial]) -> float:
    return float(np.mean([point.throughput_rows_per_s for point in points]))
