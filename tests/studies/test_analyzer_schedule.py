"""perf_analyzer's Poisson arrivals, held to the rates at which it really sent."""

from pathlib import Path

import numpy as np
import pytest

from perf.studies.archive import unpacked
from perf.studies.prediction.analyzer_schedule import SEED, poisson
from perf.studies.prediction.points import PredictedPoint, measured, round_folder


@pytest.fixture(scope="module")
def points() -> dict[tuple[str, str], PredictedPoint]:
    """The measured points, by model and load."""
    models = ("simulated_accelerator", "ranker", "text_recognition")
    with unpacked(Path("perf/studies/results/prediction.jsonl")) as folder:
        return {(point.model, point.load): point for point in measured(round_folder(folder, 1), models)}


def test_numpy_and_the_c_plus_plus_standard_begin_alike() -> None:
    """[rand.predef]: the 10000th invocation of a default-constructed std::mt19937 gives 4123659995."""
    words = np.random.RandomState(SEED).randint(0, 2**32, size=10_000, dtype=np.uint32)
    assert words[-1] == 4123659995


def test_gaps_are_exponential_and_always_the_same() -> None:
    times = poisson(1000.0, 100_000)
    gaps = np.diff(times)
    assert np.mean(gaps) == pytest.approx(1e-3, rel=0.02)
    assert np.std(gaps) == pytest.approx(1e-3, rel=0.02)
    assert np.array_equal(poisson(1000.0, 500), times[:500])
    assert np.allclose(poisson(500.0, 100_000), 2 * times, rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("simulated_accelerator", 110),
        ("simulated_accelerator", 390),
        ("text_recognition", 520),
        ("text_recognition", 870),
        ("ranker", 870),
        ("ranker", 960),
    ],
)
def test_as_many_were_answered_as_the_schedule_has(
    points: dict[tuple[str, str], PredictedPoint], model: str, rate: int
) -> None:
    """Over these few seconds up to 2 % fewer than the rate that was asked for says; the schedule says how many."""
    point = points[model, f"poisson:{rate}"]
    scheduled = point.requests / poisson(rate, point.requests)[-1]
    assert scheduled != pytest.approx(rate, rel=0.004)
    assert point.throughput_rows_per_s == pytest.approx(scheduled, rel=0.004)
