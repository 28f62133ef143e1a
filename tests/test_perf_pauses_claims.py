"""What is simulated of threads and caches after a pause is the median of the committed records, as SIMULATE.md says."""

from pathlib import Path
from statistics import median

import pytest

from perf.simulate.check import MODELS
from perf.simulate.costs import ASLEEP_DISPATCH, ASLEEP_WAY, LATE_US, cooled
from perf.simulate.pauses import PAUSES_MS, ROUNDS, Pauses, load

RESULTS = Path("perf/results/pauses")
TEXT = (Path("perf") / "SIMULATE.md").read_text()


@pytest.fixture(scope="module")
def found() -> list[Pauses]:
    return [load(RESULTS / f"{model}.json") for model in MODELS]


def test_the_simulation_takes_the_medians(found: list[Pauses]) -> None:
    assert all(len(one.rounds) >= ROUNDS for one in found)
    assert round(median(one.way for one in found), 1) == ASLEEP_WAY
    assert round(median(one.dispatch for one in found), 1) == ASLEEP_DISPATCH
    assert round(median(one.late_us for one in found), -1) == LATE_US


@pytest.mark.parametrize("pause_ms", PAUSES_MS[1:-1])
def test_caches_are_lost_about_as_fast_as_in_the_median_of_the_models(found: list[Pauses], pause_ms: int) -> None:
    simulated = cooled(pause_ms * 1e3) / cooled(PAUSES_MS[-1] * 1e3)
    assert simulated == pytest.approx(median(one.cooled(pause_ms) for one in found), abs=0.15)


def test_the_text_shows_every_model(found: list[Pauses]) -> None:
    for row in (
        " | ".join(f"x {one.way:.1f}" for one in found),
        " | ".join(f"x {one.dispatch:.1f}" for one in found),
        " | ".join(f"{one.late_us:.0f} us" for one in found),
        " | ".join(f"{one.cold_us:.0f} us" for one in found),
        " | ".join(f"{one.cooled(4):.2f}, {one.cooled(8):.2f}" for one in found),
    ):
        assert f"| {row} |" in TEXT
