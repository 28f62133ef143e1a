"""What is simulated of pauses is what the committed records say, and so does SIMULATE.md."""

from pathlib import Path
from statistics import median

import pytest

from perf.simulate.costs import ASLEEP, COOLING_US, LATE_US, cooled
from perf.studies.pauses import PAUSES_MS, ROUNDS, Pauses, cooling_us, load
from perf.studies.prediction.__main__ import MODELS

RESULTS = Path("perf/studies/results/pauses")
TEXT = (Path("perf") / "SIMULATE.md").read_text()


@pytest.fixture(scope="module")
def found() -> list[Pauses]:
    return [load(RESULTS / f"{model}.json") for model in MODELS]


def test_the_simulation_takes_the_medians_and_the_fit(found: list[Pauses]) -> None:
    assert all(len(one.rounds) >= ROUNDS for one in found)
    assert round(median(one.way for one in found), 1) == ASLEEP
    assert round(median(one.late_us for one in found), -1) == LATE_US
    assert cooling_us(found) == COOLING_US


def test_the_fit_finds_the_constant_that_made_the_times(found: list[Pauses]) -> None:
    cold = next(one for one in found if one.cold_us)
    exact = {pause: 3000 + 1000 * cooled(pause * 1e3, 23_000) for pause in PAUSES_MS}
    rounds = tuple(type(one)(**vars(one) | {"computing_us": exact}) for one in cold.rounds)
    assert cooling_us([Pauses(model="made", rounds=rounds)]) == 23_000


def test_the_text_shows_every_model(found: list[Pauses]) -> None:
    def shares(pauses: list[float]) -> str:
        return ", ".join(f"{share:.2f}" for share in pauses)

    simulated = shares([cooled(pause * 1e3) / cooled(PAUSES_MS[-1] * 1e3) for pause in (4, 8, 16)])
    cold = [shares([one.cooled(pause) for pause in (4, 8, 16)]) if one.cold_us else "" for one in found]
    for row in (
        [*(f"x {one.way:.1f}" for one in found), f"x {ASLEEP}"],
        [*(f"{one.dispatched_us(None):.0f}, {one.dispatched_us(4):.0f} us" for one in found), "the ramp's own"],
        [*(f"{one.late_us:.0f} us" for one in found), f"{LATE_US:.0f} us"],
        [*(f"{one.cold_us:.0f} us" for one in found), "the ramp's own"],
        [*cold, simulated],
    ):
        assert "| " + " | ".join(row).replace("|  |", "| |").strip() + " |" in TEXT.replace("| |", "| |"), row
