"""What SIMULATE.md claims of predictions against the real server, predicted anew from the committed records."""

import re
from pathlib import Path

import pytest

from perf.simulate.predict import LIMITS
from perf.studies.prediction.__main__ import MODELS, Compared, by_load, compare
from perf.studies.prediction.points import ROUNDS, holds

RESULTS = Path("perf/studies/results/prediction")
TEXT = (Path("perf") / "SIMULATE.md").read_text()


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return list(compare(RESULTS))


@pytest.mark.parametrize("model", MODELS)
def test_six_configurations_of_a_model_were_measured_under_both_loads(compared: list[Compared], model: str) -> None:
    for some in by_load([one for one in compared if one.point.model == model]).values():
        points = [one.point for one in some]
        assert len({point.candidate for point in points}) == len(points) == 6
        assert {point.candidate.instances for point in points} == {1, 2}
        assert all(one.rounds >= ROUNDS and one.rounds % 2 for one in some)


def test_the_limits_are_those_that_were_asked_for() -> None:
    assert LIMITS == {"throughput": 0.05, "p50": 0.10, "p95": 0.20}


@pytest.mark.parametrize("load", ["closed loops", "Poisson arrivals"])
def test_as_many_predictions_hold_as_the_text_says_and_the_misses_are_listed(
    compared: list[Compared], load: str
) -> None:
    some = by_load(compared)[load]
    held, own = (
        sum(map(holds, errors)) for errors in zip(*((one.errors, one.own_errors) for one in some), strict=True)
    )
    assert f"{load}: {held} of {len(some)} within the limits, {own} with the speed of their own executions" in TEXT
    for one in some:
        if not holds(one.errors):
            line = rf"`{one.point.model}`.*{re.escape(str(one.point.candidate))}.*`{one.point.load}`"
            assert re.search(line, TEXT), f"a miss that the text does not list: {one.point.file_name}"


def test_service_times_were_measured_on_the_machine_and_versions_of_the_points(compared: list[Compared]) -> None:
    assert len({(one.point.machine, tuple(sorted(one.point.versions.items()))) for one in compared}) == 1
