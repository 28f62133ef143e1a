"""Service times against known lines, and the cost of arrivals against levels that were made with one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perf.measure.ramp import Level
from perf.measure.service_curve import Size, burden, fit, smoothed
from perf.records.measurement import AnalyzerResult
from serve.management.statistics import Counters


def sizes(times: dict[int, float], executions: int = 100) -> list[Size]:
    return [Size(rows=rows, executions=executions, mean_us=us, error_us=1.0) for rows, us in times.items()]


def test_a_line_is_found_again() -> None:
    line = fit(sizes({rows: 20_000 + 500.0 * rows for rows in (1, 2, 5, 8)}))
    assert (line.fixed_us, line.row_us) == pytest.approx((20_000, 500))
    assert line.r2 == pytest.approx(1.0)
    assert line.fixed_error_us == pytest.approx(0.0, abs=1e-3)


def test_a_size_counts_as_often_as_it_was_executed() -> None:
    """Two points at one size weigh as one point with both their executions: numpy's own weighted fit says the same."""
    counted = [Size(rows=1, executions=900, mean_us=10.0, error_us=0.1)]
    counted += [
        Size(rows=2, executions=10, mean_us=30.0, error_us=5.0),
        Size(rows=8, executions=90, mean_us=17.0, error_us=1),
    ]
    row, fixed = np.polyfit([1, 2, 8], [10.0, 30.0, 17.0], 1, w=np.sqrt([900, 10, 90]))
    line = fit(counted)
    assert (line.fixed_us, line.row_us) == pytest.approx((fixed, row))
    assert line.row_error_us > 0
    assert 0 < line.r2 < 1


def test_one_size_makes_a_flat_line() -> None:
    line = fit(sizes({4: 7000.0}))
    assert (line.at(1), line.at(100)) == (7000.0, 7000.0)


def test_steps_that_were_counted_often_stay() -> None:
    stepped = {rows: 10_000.0 if rows <= 4 else 20_000.0 for rows in range(1, 9)}
    table = smoothed(sizes(stepped, executions=500), 8)
    for rows, us in stepped.items():
        assert table[rows] == pytest.approx(us, rel=0.02)


def test_a_rare_outlier_is_drawn_to_its_neighbours() -> None:
    line = {rows: 1000.0 + 100 * rows for rows in range(1, 17)}
    counted = [size for size in sizes(line) if size.rows != 8] + [
        Size(rows=8, executions=1, mean_us=9000, error_us=9000)
    ]
    table = smoothed(counted, 16)
    assert table[8] < 1800 + 0.25 * (9000 - 1800)
    assert table[12] == pytest.approx(2200, rel=0.05)


def test_between_and_beyond_counted_sizes_the_table_is_a_line() -> None:
    table = smoothed(sizes({1: 1100.0, 32: 4200.0}), 40)
    assert table[16] == pytest.approx(1100 + 15 * 100)
    assert table[40] == pytest.approx(4200 + 8 * 100)
    assert list(table) == list(range(1, 41))


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


def test_without_a_cost_of_arrivals_the_times_stay() -> None:
    arrivals = burden(levels(lambda n, rows: stepped(rows)), 1, 8)
    assert arrivals.each_us == 0.0
    assert {size.rows: size.mean_us for size in arrivals.sizes} == pytest.approx(
        {rows: stepped(rows) for rows in range(1, 9)}
    )


def test_a_slope_within_its_error_is_zero() -> None:
    """Every second level is slower, however many requests are in flight."""
    slower = {1: 0, 3: 300, 5: 0, 8: 300, 13: 0, 17: 300}
    assert burden(levels(lambda n, rows: stepped(rows) + slower[n]), 1, 8).each_us == 0.0


def test_levels_that_do_not_keep_all_instances_busy_are_left_out() -> None:
    arrivals = burden([level(1, {1: 9_999.0}), level(3, {1: 1_200.0}), level(5, {1: 1_200.0, 2: 1_400.0})], 2, 8)
    assert {size.rows: size.mean_us for size in arrivals.sizes} == {1: 1_200.0, 2: 1_400.0}
