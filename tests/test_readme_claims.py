"""The figures that the project claims, held against the records that the README's tables are made from.

The bounds are those of Triton's tutorial and of the project's own goals; nothing is measured here.
"""

from pathlib import Path

import pytest

from perf.measure import interleaved
from perf.records.study import Study
from perf.report.__main__ import summarise
from perf.report.summary import Comparison, Row
from perf.tune.trials import last_rounds

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "perf" / "results" / "readme"
STUDY = ROOT / "perf" / "results" / "grid" / "simulated_accelerator.closed-32.throughput.p99-55ms.json"


@pytest.fixture(scope="module")
def comparisons() -> dict[str, Comparison]:
    return {comparison.model: comparison for comparison in summarise(RECORDS).comparisons}


def row(comparison: Comparison, config_name: str, concurrency: int) -> Row:
    found = comparison.at(config_name, concurrency)
    assert found is not None
    return found


def gain(row: Row) -> float:
    assert row.to_baseline is not None
    return row.to_baseline.median


def test_the_stand_in_gains_what_the_tutorial_reports(comparisons: dict[str, Comparison]) -> None:
    """Tutorial, A100: 3.27 x at concurrency 16, 1.04 x at 2, p95 0.31 x; two rows a request, eight together at most."""
    accelerator = comparisons["simulated_accelerator"]
    assert {one.load.concurrency for one in accelerator.rows} == set(range(2, 17, 2))
    assert 3.0 <= gain(row(accelerator, "dynamic", 16)) <= 4.0
    assert 0.95 <= gain(row(accelerator, "dynamic", 2)) <= 1.10
    p95 = row(accelerator, "dynamic", 16).p95_to_baseline
    assert p95 is not None
    assert p95.median <= 0.40
    assert set(row(accelerator, "baseline", 16).batches) == {2}
    assert row(accelerator, "baseline", 16).rows_per_execution == 2.0
    assert row(accelerator, "dynamic", 16).rows_per_execution >= 6


def test_a_second_instance_of_the_stand_in(comparisons: dict[str, Comparison]) -> None:
    accelerator = comparisons["simulated_accelerator"]
    two, one = (gain(row(accelerator, name, 16)) for name in ("dynamic_2_instances", "dynamic"))
    assert two / one >= 1.5


def test_the_ranker_gains_on_a_cpu(comparisons: dict[str, Comparison]) -> None:
    ranker = comparisons["ranker"]
    assert gain(row(ranker, "dynamic", 16)) >= 4
    share = row(ranker, "dynamic", 64).to_ceiling
    assert share is not None
    assert share.median >= 0.75
    assert ranker.ceiling is not None
    assert ranker.ceiling.rows == 64


def test_the_rows_behind_the_claims_are_stable(comparisons: dict[str, Comparison]) -> None:
    accelerator = comparisons["simulated_accelerator"]
    for name in ("baseline", "dynamic", "dynamic_2_instances"):
        assert row(accelerator, name, 16).marks == ()


def test_the_tuners_verdict_is_that_of_its_record() -> None:
    """The README shows the verdict of perf/tune/TUNE.md, and both the gain of the record."""
    study = Study.read(STUDY)
    final, against, _ = last_rounds(study.trials)
    found = interleaved.gain(final, against, lambda trial: trial.throughput_rows_per_s)
    requests, late = (sum(getattr(one, name) for one in final) for name in ("requests", "late"))
    verdict = (ROOT / "README.md").read_text().split("use max")[1].split("```")[0]
    assert verdict in (ROOT / "perf" / "tune" / "TUNE.md").read_text()
    assert str(study.chosen) in f"max{verdict}"
    assert f"throughput x {found} in {found.count} interleaved rounds" in verdict
    assert requests > 1000
    assert late == 0
    assert study.sla.latency_ms == 55
