"""What GOODPUT.md claims is what its records say."""

from pathlib import Path

import pytest

from perf.studies.goodput.contender import AIMD, DEADLINE, contenders
from perf.studies.goodput.record import Search, read
from perf.studies.goodput.stand_in import StandIn
from perf.studies.goodput.table import Line, lines, markdown

DOCUMENT = Path("perf/studies/goodput/README.md").read_text()
SEEDS = 5


@pytest.fixture(scope="module")
def searches() -> list[Search]:
    return sorted(read(Path("perf/studies/results/goodput")), key=lambda one: (one.arrivals != "poisson", one.seed))


@pytest.fixture(scope="module")
def found(searches: list[Search]) -> dict[tuple[str, str], Line]:
    return {(one.arrivals, one.contender): one for one in lines(searches)}


def test_all_were_asked_the_same(searches: list[Search]) -> None:
    assert len(searches) == 2 * 3 * SEEDS
    assert len({(one.machine.cpu, one.slo_ms, one.fixed_ms, one.row_ms) for one in searches}) == 1


def test_the_target_is_two_and_a_half_executions_of_a_row(searches: list[Search]) -> None:
    one = searches[0]
    assert one.slo_ms == pytest.approx(2.5 * (one.fixed_ms + one.row_ms))


def test_the_table_is_that_of_the_records(searches: list[Search]) -> None:
    one = searches[0]
    device = StandIn(fixed_s=one.fixed_ms / 1e3, row_s=one.row_ms / 1e3)
    titles = {name: way.title for name, way in contenders(device, one.slo_ms / 1e3, 64).items()}
    assert markdown(lines(searches), titles) in DOCUMENT


def test_deadlines_beat_greedy(found: dict[tuple[str, str], Line]) -> None:
    for arrivals, least in (("poisson", 1.05), ("gamma:4", 1.15)):
        ratio = found[arrivals, DEADLINE].ratio
        assert ratio is not None
        assert ratio.value >= least


def test_aimd_is_not_behind_greedy_with_the_right_cap(found: dict[tuple[str, str], Line]) -> None:
    for arrivals in ("poisson", "gamma:4"):
        ratio = found[arrivals, AIMD].ratio
        assert ratio is not None
        assert ratio.value >= 0.95
