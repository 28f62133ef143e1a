"""Which trials on record are used again."""

from pathlib import Path

import pytest
from simulated_bench import Interrupted, bench_of, searching

from perf.records.candidate import Candidate
from perf.records.study import FINAL, HALVING, Study, Trial
from perf.records.traffic import Traffic
from perf.tune.comparison import Comparison
from perf.tune.search import Search
from perf.tune.study_log import ROUNDS, StudyLog

CANDIDATE = Candidate(max_batch_size=8)
ONE, OTHER = Candidate(max_batch_size=8, instances=2), Candidate(max_batch_size=16, instances=2)


def opened(path: Path) -> Search:
    return searching(path, "closed:16", 60, sizes=(8,))


def measure(log: StudyLog, load: str = "closed:16", seconds: float = 1.0) -> Trial:
    return log.measure(CANDIDATE, Traffic.parse(load), stage=HALVING, round=1, seconds=seconds)


def count(search: Search) -> int:
    return len(bench_of(search).measured)


def test_a_recorded_trial_of_another_length_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    first = measure(opened(path).log, seconds=2.9)
    again = opened(path)
    assert measure(again.log, seconds=2.9) == first
    assert count(again) == 0
    longer = measure(again.log, seconds=6.0)
    assert (longer.planned_s, count(again)) == (6.0, 1)
    # A server is started only for what is measured.
    last = opened(path)
    for seconds in (2.9, 6.0, 9.0):
        last.log.prepare(CANDIDATE, Traffic.parse("closed:16"), stage=HALVING, round=1, seconds=seconds)
        assert len(bench_of(last).prepared) == (seconds == 9.0)


def compared(search: Search, choice: Candidate) -> Comparison:
    """The rounds of a choice beside the current configuration."""
    comparison = search._final_rounds.of(choice, search.screen.traffic)
    assert comparison is not None
    assert len(comparison.final) == len(comparison.current) == ROUNDS
    return comparison


@pytest.mark.slow
def test_a_round_is_read_only_if_both_sides_were_measured_for_this_choice(tmp_path: Path) -> None:
    """Else an older trial of the current configuration is compared with a newer one of the choice."""
    path = tmp_path / "study.json"
    first = compared(opened(path), ONE)
    again = opened(path)
    assert compared(again, ONE) == first
    assert count(again) == 0
    other = opened(path)
    compared(other, OTHER)
    assert count(other) == 2 * ROUNDS
    back = opened(path)
    compared(back, ONE)
    assert count(back) == 2 * ROUNDS


def test_both_sides_of_an_interrupted_round_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "study.json"

    def interrupted(choice: Candidate) -> None:
        with pytest.raises(Interrupted):
            compared(searching(path, "closed:16", 60, sizes=(8,), stop_after=1), choice)

    interrupted(ONE)
    again = opened(path)
    compared(again, ONE)
    assert count(again) == 2 * ROUNDS
    # The first side of a round of another choice is no side of this one's. The other rounds are still whole.
    interrupted(OTHER)
    back = opened(path)
    compared(back, ONE)
    assert [(candidate, number) for candidate, _, number, _ in bench_of(back).measured] == [(CANDIDATE, 1), (ONE, 1)]
    assert sum(trial.stage == FINAL for trial in Study.read(path).trials) == ROUNDS
