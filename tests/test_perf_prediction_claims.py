"""What SIMULATE.md claims of predictions against the real server, predicted anew from the committed records."""

import re
from pathlib import Path

import pytest

from perf.simulate.check import MODELS, RESULTS, Compared, compare
from perf.simulate.points import CLOSED, LIMITS, OPEN, holds

TEXT = (Path("perf") / "SIMULATE.md").read_text()


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return list(compare(RESULTS))


def test_six_configurations_of_a_model_were_measured_under_both_loads(compared: list[Compared]) -> None:
    assert "simulated_accelerator" in {one.point.model for one in compared} <= set(MODELS)
    for model in {one.point.model for one in compared}:
        for client in (CLOSED, OPEN):
            some = [one.point for one in compared if (one.point.client, one.point.model) == (client, model)]
            assert len({point.candidate for point in some}) == len(some) == 6
            assert {point.candidate.instances for point in some} == {1, 2}


def test_the_limits_are_those_that_were_asked_for() -> None:
    assert LIMITS == {"throughput": 0.05, "p50": 0.10, "p95": 0.20}


@pytest.mark.parametrize("client", [CLOSED, OPEN])
def test_as_many_predictions_hold_as_the_text_says_and_the_misses_are_listed(
    compared: list[Compared], client: str
) -> None:
    some = [one for one in compared if one.point.client == client]
    held = sum(holds(one.errors) for one in some)
    assert f"{client}: {held} of {len(some)}" in TEXT
    for one in some:
        if not holds(one.errors):
            line = rf"`{one.point.model}`.*{re.escape(str(one.point.candidate))}.*`{one.point.load}`"
            assert re.search(line, TEXT), f"a miss that the text does not list: {one.point.file_name}"


def test_service_times_were_measured_on_the_machine_and_versions_of_the_points(compared: list[Compared]) -> None:
    assert len({(one.point.machine, tuple(sorted(one.point.versions.items()))) for one in compared}) == 1
