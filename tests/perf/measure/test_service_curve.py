"""Service curves against known ones: steps that were seen and steps that were not, errors, and intervals that hold."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from perf.measure.ramp_plan import StepSearch
from perf.measure.service_curve import curve
from perf.measure.service_line import Size, fit

Truth = NDArray[np.float64]


def sizes(times: dict[int, float], executions: int = 100, spread: float = 0.05) -> list[Size]:
    """Counted sizes whose single executions have this relative spread."""
    return [
        Size(rows=rows, executions=executions, mean_us=us, error_us=spread * us / executions**0.5)
        for rows, us in times.items()
    ]


def test_a_line_is_found_again() -> None:
    line = fit(sizes({rows: 20_000 + 500.0 * rows for rows in (1, 2, 5, 8)}))
    assert (line.fixed_us, line.row_us) == pytest.approx((20_000, 500))
    assert line.r2 == pytest.approx(1.0)
    assert line.fixed_error_us == pytest.approx(0.0, abs=1e-3)


def test_the_edge_of_a_step_is_inferred_and_its_interval_says_what_was_not_seen() -> None:
    """Tiles of 8 rows, counted at 1 to 8, 16 and 24: 9 rows take as long as 16, a line through the counts says 0.6."""
    table = curve(sizes({**dict.fromkeys(range(1, 9), 10_000.0), 16: 20_000.0, 24: 30_000.0}), 24)
    assert str(table.shape) == "steps of 8 rows"
    assert [table.times_us[rows] for rows in (8, 9, 15, 17)] == pytest.approx([10e3, 20e3, 20e3, 30e3], rel=0.01)
    assert table.low_us[9] <= 10_000
    assert table.high_us[9] >= 20_000


def test_a_noisy_size_is_drawn_to_the_straight_line_of_the_others() -> None:
    """34.4 ms from 18 noisy executions, where all other sizes are on 8 ms + 0.7 ms x rows: 15.7 ms at 11 rows."""
    line = {rows: 8_000 + 700.0 * rows for rows in range(1, 17) if rows != 11}
    noisy = Size(rows=11, executions=18, mean_us=34_400.0, error_us=5_000.0)
    table = curve([*sizes(line, executions=300, spread=0.15), noisy], 16)
    assert str(table.shape) == "a straight line"
    assert table.times_us[11] == pytest.approx(15_700, rel=0.02)
    assert table.times_us[12] == pytest.approx(16_400, rel=0.02)


def straight(rng: np.random.Generator, fixed: float, rows: Truth) -> Truth:
    return fixed + rng.uniform(10, 1500) * rows


def tiled(rng: np.random.Generator, fixed: float, rows: Truth) -> Truth:
    tile = rng.uniform(0.1, 1.0) * fixed * np.ceil(rows / rng.integers(2, 17))
    return np.asarray(fixed + rng.uniform(0, 300) * rows + tile)


def jumping(rng: np.random.Generator, fixed: float, rows: Truth) -> Truth:
    jumps = np.where(rng.random(len(rows)) < 0.2, rng.exponential(0.4 * fixed, len(rows)), 0.0)
    return np.asarray(fixed + np.cumsum(jumps))


def counted(rng: np.random.Generator, truth: Truth, spread: float) -> list[Size]:
    """A third to nine tenths of the sizes, 3 to 1,000 executions each, log-normal with this relative spread."""
    most = len(truth)
    share = rng.uniform(0.3, 0.9)
    seen = np.unique([1, most, *rng.choice(np.arange(1, most + 1), size=max(3, int(most * share)), replace=False)])
    made = []
    for rows in seen:
        executions = int(np.exp(rng.uniform(np.log(3), np.log(1000))))
        took = truth[rows - 1] * rng.lognormal(-(spread**2) / 2, spread, executions)
        error = float(np.std(took, ddof=1)) / executions**0.5
        made.append(Size(rows=int(rows), executions=executions, mean_us=float(np.mean(took)), error_us=error))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", [straight, tiled, jumping])
def test_in_200_random_cases_the_intervals_hold_the_truth_and_the_curve_is_not_biased(
    kind: Callable[[np.random.Generator, float, Truth], Truth],
) -> None:
    """Of sizes that were counted, and of those between: 90 % or more in the interval, the mean error below 2 %."""
    rng = np.random.default_rng(16)
    held: dict[bool, list[bool]] = {True: [], False: []}
    errors: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(200):
        rows = np.arange(1, int(rng.choice([8, 16, 32, 64])) + 1, dtype=np.float64)
        truth = kind(rng, rng.uniform(500, 20_000), rows)
        table = curve(counted(rng, truth, float(rng.choice([0.02, 0.15, 0.4]))), len(rows))
        for size, us in enumerate(truth.tolist(), 1):
            seen = size in table.counted
            held[seen].append(table.low_us[size] - 1e-6 <= us <= table.high_us[size] + 1e-6)
            errors[seen].append(table.times_us[size] / us - 1)
    for seen in (True, False):
        assert np.mean(held[seen]) >= 0.9
        assert abs(np.mean(errors[seen])) < 0.02


def searched(truth: Callable[[int], float], seen: tuple[int, ...]) -> list[int]:
    """The sizes that a search measures, with exact times."""
    times = {rows: truth(rows) for rows in seen}
    search, probed = StepSearch.of(curve(sizes(times, executions=10_000, spread=0.01), max(seen))), []
    while (rows := search.next(times)) is not None:
        times[rows] = truth(rows)
        probed.append(rows)
        search.add(rows, times)
    return probed


def test_the_edge_of_a_step_is_measured_by_halving_its_gap() -> None:
    """Between 8 and 16 rows: 12, 10 and 9, then the step is between 8 and 9."""
    assert searched(lambda rows: 10_000.0 * -(-rows // 8), (1, 2, 4, 8, 16)) == [12, 10, 9]


def test_a_gap_on_a_straight_line_takes_one_measurement_and_a_flat_one_none() -> None:
    assert searched(lambda rows: 1_000.0 * rows, (1, 2, 3, 4, 16)) == [10]
    assert searched(lambda rows: 10_000.0 + 10 * rows, (1, 8, 16)) == []
