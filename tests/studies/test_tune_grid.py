import math
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_bench import CONFIG, SimulatedBench, accelerator

from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Study, Trial
from perf.records.traffic import Traffic
from perf.stats.interval import LEVEL
from perf.stats.latency_target import LatencyTarget
from perf.stats.looks import Looks
from perf.stats.percentile import percentile
from perf.stats.verdict import CANNOT_TELL, SAME
from perf.studies.grid import judgement
from perf.studies.grid.__main__ import candidates, measure
from perf.studies.grid.record import Grid, GridError, GridTrial
from tests.perf.report.sweep.test_summary import MACHINE

RESULTS = Path("perf/studies/results/grid")
JUDGED_STUDY = RESULTS / "simulated_accelerator.closed-32.throughput.p99-55ms.json"


def bench() -> SimulatedBench:
    return SimulatedBench(service=accelerator, target=LatencyTarget(latency_ms=100))


def empty(seed: int = 1) -> Grid:
    return Grid(model=CONFIG.name, load="closed:8", rows=1, machine=MACHINE, command=("python",), seed=seed, planned=12)


def test_a_grid_is_measured_once_and_goes_on(tmp_path: Path) -> None:
    wanted = candidates([1, 4, 8], [0, 5000], [(1, None), (2, None)])
    path = tmp_path / "grid.json"
    stopped = measure(empty(), wanted, path, bench(), seconds=0.5, until=-math.inf, progress=lambda _: None)
    assert stopped.points == ()
    first, again = bench(), bench()
    whole = measure(empty(), wanted, path, first, seconds=0.5, until=math.inf, progress=lambda _: None)
    assert {point.candidate for point in whole.points} == set(wanted)
    assert file.read(path, Grid) == whole
    # Half of it was there: the other half is measured, in the same order.
    half = replace(whole, points=whole.points[:6])
    assert measure(half, wanted, path, again, seconds=0.5, until=math.inf, progress=lambda _: None) == whole
    assert again.measured == first.measured[6:]
    assert [trial[0] for trial in first.measured] != wanted


def test_the_best_is_the_fastest_within_the_target(tmp_path: Path) -> None:
    trial = bench().measure(Candidate(max_batch_size=4), Traffic.parse("closed:8"), stage="grid", round=1, seconds=1.0)
    point = GridTrial.of(trial)
    assert point.p99_ms == pytest.approx(float(percentile(trial.latencies_us, 99)) / 1e3, abs=0.001)
    late = replace(point, throughput_rows_per_s=900.0, latencies_ms=tuple(2 * ms for ms in point.latencies_ms))
    wrong = replace(point, throughput_rows_per_s=950.0, faults=("3 requests failed",))
    grid = replace(empty(), points=(late, point, wrong))
    assert grid.best(1.5 * point.p99_ms) == point
    assert grid.best(2 * point.p99_ms) == late
    assert grid.best(0.5 * point.p99_ms) is None
    lost = replace(point, latencies_ms=(*point.latencies_ms[:-1], math.inf))
    path = replace(grid, points=(lost,)).write(tmp_path / "grid.json")
    assert file.read(path, Grid).points == (lost,)
    path.write_text(path.read_text().replace('"grid"', '"study"', 1))
    with pytest.raises(file.RecordError, match=r"a study \('study'\), not a full grid"):
        file.read(path, Grid)


def test_a_study_without_a_choice_has_nothing_to_be_judged_by(tmp_path: Path) -> None:
    study = replace(Study.read(JUDGED_STUDY), chosen=None)
    grid = file.read(RESULTS / "simulated_accelerator.closed-32.json", Grid)
    with pytest.raises(
        GridError, match=r"the study chose no configuration that meets p99 <= 55 ms.*Set a longer target"
    ):
        judgement.judge(study, grid, tmp_path, bench(), progress=lambda _: None)
    assert not list(tmp_path.iterdir())


def judged(rates: tuple[float, ...], best: tuple[float, ...], looks: tuple[int, ...] = ()) -> judgement.GridJudgement:
    """A judgement on record, with other throughputs."""
    known = file.read(RESULTS / "ranker.closed-32.p99-75ms.judged.json", judgement.GridJudgement)
    (tuned, *_), (other, *_) = known.of(judgement.TUNED), known.of(judgement.BEST)
    points = [
        replace(point, throughput_rows_per_s=rate, round=number)
        for point, side in ((tuned, rates), (other, best))
        for number, rate in enumerate(side, 1)
    ]
    return replace(known, points=tuple(points), looks=looks)


def test_the_ratio_is_the_geometric_mean_over_the_rounds() -> None:
    known = file.read(RESULTS / "ranker.closed-32.p99-75ms.judged.json", judgement.GridJudgement)
    rounds: dict[int, dict[str, float]] = {}
    for point in known.points:
        rounds.setdefault(point.round, {})[point.stage] = point.throughput_rows_per_s
    ratios = [rates[judgement.TUNED] / rates[judgement.BEST] for rates in rounds.values()]
    assert known.ratio.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert known.ratio.level == LEVEL
    planned = replace(known, looks=judgement.LOOKS)
    assert planned.ratio.level == Looks(at=judgement.LOOKS).level_at(5)


def test_a_choice_passes_if_it_surely_reaches_97_percent_of_the_best() -> None:
    near = judged((99.0, 99.1, 98.9, 99.0, 99.2), (100.0, 100.1, 99.9, 100.0, 100.0))
    assert (near.passed, near.verdict.word) == (True, CANNOT_TELL)
    # It is measured alone if the grid has no better one.
    alone = replace(near, points=tuple(near.of(judgement.TUNED)))
    assert (alone.passed, alone.ratio.value, alone.verdict.word) == (True, 1.0, SAME)
    # The same mean ratio with noise: it may be lower.
    noisy = judged((90.0, 109.0, 95.0, 104.0, 97.0), (100.0, 100.1, 99.9, 100.0, 100.0))
    assert noisy.ratio.value > judgement.SHARE
    assert (noisy.passed, noisy.verdict.word) == (False, CANNOT_TELL)
    assert any("cannot tell, measure" in line for line in judgement.lines(noisy))
    for costly in (
        replace(near, live_s=judgement.LIVE_S + 1),
        replace(near, live_points=judgement.TRIALS + 1),
        replace(near, wall_s=judgement.WALL_S + 1),
    ):
        assert not costly.passed
    late = replace(near, points=tuple(replace(point, late=point.requests // 10) for point in near.points))
    assert late.misses
    assert not late.passed


class SlowingBench(SimulatedBench):
    """Each trial is a little slower than the one before: a measured rate is never twice the same."""

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        trial = super().measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        return replace(
            trial, throughput_rows_per_s=trial.throughput_rows_per_s * (1 - 1e-6 * len(self.measured) ** 0.5)
        )


def test_a_judgement_ends_at_the_first_look_at_which_it_is_certain(tmp_path: Path) -> None:
    study = replace(Study.read(JUDGED_STUDY), profiles=())
    grid = file.read(RESULTS / "simulated_accelerator.closed-32.json", Grid)
    slowing = SlowingBench(service=accelerator, target=LatencyTarget(latency_ms=100))
    certain = judgement.judge(study, grid, tmp_path, slowing, progress=lambda _: None)
    # The choice is the grid's best, and "the same" takes more rounds than the looks before the last have.
    assert len(certain.of(judgement.TUNED)) == judgement.LOOKS[-1]
    assert certain.finished
    assert certain.wall_s == study.steps[-1].at_s
    again = bench()
    assert judgement.judge(study, grid, tmp_path, again, progress=lambda _: None) == certain
    assert again.measured == []
