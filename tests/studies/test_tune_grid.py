import math
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_bench import CONFIG, SimulatedBench, accelerator

from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Study
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.percentile import percentile
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


def test_the_ratio_is_the_geometric_mean_over_the_rounds() -> None:
    judged = file.read(RESULTS / "ranker.closed-32.p99-75ms.judged.json", judgement.GridJudgement)
    rounds: dict[int, dict[str, float]] = {}
    for point in judged.points:
        rounds.setdefault(point.round, {})[point.stage] = point.throughput_rows_per_s
    ratios = [rates[judgement.TUNED] / rates[judgement.BEST] for rates in rounds.values()]
    assert judged.ratio.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert judged.passed
    slow = replace(judged, live_s=judgement.LIVE_S + 1)
    assert not slow.passed
