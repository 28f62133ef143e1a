"""A tuner's choice compared with the best of a full grid, both measured again in turn.

The best of sixty noisy measurements is partly lucky (the winner's curse), so its figure in the grid is too high. Both
are measured again in rounds, and the ratio is that of these rounds.
"""

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
from perf.stats.interval import LEVEL, Interval
from perf.stats.latency_target import LatencyTarget, TrialCount, judge_trials
from perf.stats.looks import Looks
from perf.stats.verdict import SAME, Verdict, verdict
from perf.studies.grid.record import Grid, GridError, GridTrial
from perf.tune.study_log import WARM_UP_S, Bench, points_of

TUNED, BEST = "tuned", "best of the grid"
# Numbers of rounds after which a judgement ends if it is certain, and the seconds of a trial.
LOOKS, SECONDS = (5, 10, 20), 3.0
# The share of the grid's best that a choice must surely reach.
SHARE = 0.97
# What its search may cost: points, seconds of load, and seconds after the ramps with everything that is not load.
TRIALS, LIVE_S, WALL_S = 13, 90.0, 100.0


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
