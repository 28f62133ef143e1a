"""The cost of arrivals, against levels that were made with one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from perf.measure.ramp import Level
from perf.measure.service_burden import burden
from perf.records.measurement import AnalyzerResult
from serve.management.statistics import Counters

NOTHING = AnalyzerResult(window_ms=1, windows=(), throughput_rows_per_s=0.0)


def level(concurrency: int, times_us: dict[int, float], *, count: int = 10) -> Level:
    batches = dict.fromkeys(times_us, count)
    rows = sum(size * count for size in times_us)
    counted = replace(
        Counters.none(),
        requests=rows,
        rows=rows,
        executions=count * len(times_us),
        batches=batches,
        batches_ns={size: round(us * 1e3) * count for size, us in times_us.items()},
    )
    return Level(concurrency=concurrency, seconds=1.0, measured=NOTHING, counted=counted)


def stepped(rows: int) -> float:
    """A curve that no line fits."""
    return 1_000.0 + 200 * rows + (3_000 if rows > 4 else 0)


def levels(took: Callable[[int, int], float]) -> list[Level]:
    return [level(n, {rows: took(n, rows) for rows in range(1, min(n, 8) + 1)}) for n in (1, 3, 5, 8, 13, 17)]


def test_the_cost_of_an_arrival_is_found_on_a_stepped_curve() -> None:
    """Of n clients with one instance, n - b arrive while b run, and never more than the 8 that were answered."""
    arrivals = burden(levels(lambda n, rows: stepped(rows) + 50 * min(n - rows, 8)), 1, 8)
    assert arrivals.each_us == pytest.approx(50.0)
    assert {size.rows: size.mean_us for size in arrivals.sizes} == pytest.approx(
        {rows: stepped(rows) for rows in range(1, 9)}
    )


def test_levels_that_differ_by_more_than_their_errors_show_the_drift_of_the_machine() -> None:
    """4 rows take 2.0 and 2.4 ms at two levels of 10 executions: 0.2 ms about the mean, a deviation of 0.283 / 2.2.

    Single executions with a spread of 20 % explain 0.2 / sqrt(10) of that.
    """
    made = [level(n, {4: took}) for n, took in ((4, 2_000.0), (5, 2_400.0))]
    exact = burden(made, 1, 8, {4: 2_200 * 0.01 / 20**0.5})
    assert exact.drift == pytest.approx(0.2 * 2**0.5 / 2.2, rel=0.01)
    noisy = burden(made, 1, 8, {4: 2_200 * 0.2 / 20**0.5})
    assert noisy.drift == pytest.approx((exact.drift**2 - 0.2**2 / 10) ** 0.5, rel=0.01)
    assert burden(made, 1, 8, {4: 2_200 * 0.6 / 20**0.5}).drift == 0.0
