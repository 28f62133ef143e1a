"""The figures that the project claims, held against the records that the README's tables are made from.

The bounds are those of Triton's tutorial and of the project's own goals; nothing is measured here.
"""

from pathlib import Path

import pytest

from perf.report import summarise
from perf.summary import Comparison, Row

RECORDS = Path(__file__).parents[1] / "perf" / "results" / "readme"


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
