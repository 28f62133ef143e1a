"""perf_analyzer's Poisson arrivals, held to the rates at which it really sent."""

from pathlib import Path

import numpy as np
import pytest

from perf.analyzer_schedule import SEED, poisson
from perf.simulate.points import measured, round_folder

RECORDS = round_folder(Path("perf/results/prediction"), 1)


def test_numpy_and_the_c_plus_plus_standard_begin_alike() -> None:
    """[rand.predef]: the 10000th invocation of a default-constructed std::mt19937 gives 4123659995."""
    words = np.random.RandomState(SEED).randint(0, 2**32, size=10_000, dtype=np.uint32)
    assert words[-1] == 4123659995


def test_gaps_are_exponential_and_always_the_same() -> None:
    times = poisson(1000.0, 100.0)
    gaps = np.diff(times)
    assert np.mean(gaps) == pytest.approx(1e-3, rel=0.02)
    assert np.std(gaps) == pytest.approx(1e-3, rel=0.02)
    assert times[-1] < 100.0
    assert np.array_equal(poisson(1000.0, 5.0), times[times < 5.0])
    assert np.allclose(poisson(500.0, 200.0), 2 * times, rtol=1e-12)


@pytest.mark.parametrize("rate", [110, 160, 180, 230, 260, 390])
def test_a_server_that_keeps_up_answered_at_the_rate_of_the_schedule(rate: int) -> None:
    """Which is up to 3 % off the rate that was asked for, over the few seconds of a measurement."""
    point = next(one for one in measured(RECORDS, ["simulated_accelerator"]) if one.load == f"poisson:{rate}")
    sent = len(poisson(rate, point.seconds)) / point.seconds
    assert point.throughput_rows_per_s == pytest.approx(sent, rel=0.015)
