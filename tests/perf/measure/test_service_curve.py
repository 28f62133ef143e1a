"""The table of service times and its fit, against lines that are known."""

import numpy as np
import pytest

from perf.measure.service_curve import Size, fit, smoothed


def sizes(times: dict[int, float], executions: int = 100) -> list[Size]:
    return [Size(rows=rows, executions=executions, mean_us=us, error_us=1.0) for rows, us in times.items()]


def test_a_line_is_found_again() -> None:
    line = fit(sizes({rows: 20_000 + 500.0 * rows for rows in (1, 2, 5, 8)}))
    assert (line.fixed_us, line.row_us) == pytest.approx((20_000, 500))
    assert line.r2 == pytest.approx(1.0)
    assert line.fixed_error_us == pytest.approx(0.0, abs=1e-3)


def test_a_size_counts_as_often_as_it_was_executed() -> None:
    """Two points at one size weigh as one point with both their executions: numpy's own weighted fit says the same."""
    found = [Size(rows=1, executions=900, mean_us=10.0, error_us=0.1)]
    found += [
        Size(rows=2, executions=10, mean_us=30.0, error_us=5.0),
        Size(rows=8, executions=90, mean_us=17.0, error_us=1),
    ]
    row, fixed = np.polyfit([1, 2, 8], [10.0, 30.0, 17.0], 1, w=np.sqrt([900, 10, 90]))
    line = fit(found)
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
    found = [one for one in sizes(line) if one.rows != 8] + [Size(rows=8, executions=1, mean_us=9000, error_us=9000)]
    table = smoothed(found, 16)
    assert table[8] < 1800 + 0.25 * (9000 - 1800)
    assert table[12] == pytest.approx(2200, rel=0.05)


def test_between_and_beyond_counted_sizes_it_goes_straight_on() -> None:
    table = smoothed(sizes({1: 1100.0, 32: 4200.0}), 40)
    assert table[16] == pytest.approx(1100 + 15 * 100)
    assert table[40] == pytest.approx(4200 + 8 * 100)
    assert list(table) == list(range(1, 41))
