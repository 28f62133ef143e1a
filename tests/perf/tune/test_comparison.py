"""The last comparison: which trials its figures are from, and what it says of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from invented_worlds import FormulaBench, InventedWorld
from simulated_bench import CONFIG, SimulatedBench, accelerator, searching

from perf.records.candidate import Candidate
from perf.records.last_comparison import LOOKS, last_comparison
from perf.records.study import AGAINST, FINAL, HALVING, LatencyTarget, Trial
from perf.records.traffic import Traffic
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME
from perf.tune import __main__ as program
from perf.tune.comparison import Comparison
from perf.tune.goal import Goal
from perf.tune.study_log import StudyLog

DEFAULT, CHOSEN = Candidate.of(CONFIG), Candidate(max_batch_size=16, instances=2)
TARGET = LatencyTarget(latency_ms=100)


def trials(
    candidate: Candidate, rates: Sequence[float], stage: str = FINAL, load: str = "closed:16"
) -> tuple[Trial, ...]:
    """Simulated trials that are said to have these throughputs."""
    bench = SimulatedBench(service=accelerator, target=TARGET)
    one = bench.measure(candidate, Traffic.parse(load), stage=stage, round=1, seconds=1.0)
    return tuple(replace(one, throughput_rows_per_s=rate, round=number) for number, rate in enumerate(rates, 1))


def compared(new: Sequence[float], old: Sequence[float], *, open_loop: bool = False) -> Comparison:
    goal = Goal(objective="throughput", target=TARGET, open=open_loop)
    return Comparison(goal=goal, final=trials(CHOSEN, new), current=trials(DEFAULT, old, AGAINST))


@dataclass(kw_only=True)
class LuckyBench(SimulatedBench):
    """Every trial before the choice was lucky: it shows 1.3 times the true throughput."""

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        trial = super().measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        return replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s * (1.3 if stage == HALVING else 1.0))


@pytest.mark.slow
def test_no_figure_of_the_choice_is_from_a_trial_that_selected_it(tmp_path: Path) -> None:
    search = searching(tmp_path / "study.json", "closed:16", 60, sizes=(8, 16))
    search.log.bench = LuckyBench(service=accelerator, target=search.goal.target)
    result = search.run()
    assert result.chosen is not None
    assert {trial.stage for trial in result.chosen.trials} == {FINAL}
    truth = SimulatedBench(service=accelerator, target=search.goal.target).measure(
        result.chosen.candidate, Traffic.parse("closed:16"), stage=FINAL, round=1, seconds=search.budget.short_s
    )
    assert result.chosen.throughput_rows_per_s == pytest.approx(truth.throughput_rows_per_s)
    # The tables show the same: one line for the choice and one for the current configuration, without earlier trials.
    for candidate in (result.chosen.candidate, search.default):
        (shown,) = [pooled for pooled in result.measured if pooled.candidate == candidate]
        assert HALVING not in {trial.stage for trial in shown.trials}


@dataclass(kw_only=True)
class DeceptiveBench(SimulatedBench):
    """The first candidate beside the default looks best until it is chosen, and misses every target after that."""

    liar: Candidate | None = None

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        trial = super().measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        if self.liar is None and candidate != DEFAULT:
            self.liar = candidate
        if candidate != self.liar:
            return trial
        factor = 0.3 if stage == HALVING else 10
        latencies = tuple(us * factor for us in trial.latencies_us)
        return replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s / factor, latencies_us=latencies)


@pytest.mark.slow
def test_a_choice_that_fails_after_it_was_chosen_is_replaced_by_the_next(tmp_path: Path) -> None:
    search = searching(tmp_path / "study.json", "closed:16", 60, sizes=(8, 16))
    bench = DeceptiveBench(service=accelerator, target=search.goal.target)
    search.log.bench = bench
    comparison = search.run().comparison
    assert comparison is not None
    assert comparison.confirmed
    assert comparison.chosen.candidate != bench.liar
    stages = [(trial.stage, trial.candidate) for trial in search.log.study.trials]
    assert (FINAL, bench.liar) in stages
    # One round was enough to see it, and what is left of the budget confirms the next.
    assert [candidate for stage, candidate in stages if stage == FINAL].count(bench.liar or DEFAULT) == 1
    assert 2 + search.log.points <= search.budget.points
    # Its rounds have the trials of the current configuration that were made with them.
    assert len(comparison.current) == len(comparison.final)
    assert min(trial.round for trial in (*comparison.final, *comparison.current)) > LOOKS.at[-1]
    assert last_comparison(replace(search.log.study, chosen=comparison.chosen.candidate)) == comparison.compared


def test_a_gain_is_faster_the_same_or_needs_more_rounds() -> None:
    faster = compared([300, 303, 298], [100, 101, 99])
    assert (faster.gains[0].verdict.word, faster.better, faster.certain) == (FASTER, True, True)
    same = compared([100.1, 99.9, 100] * 8, [100, 100.1, 99.9] * 8)
    assert (same.gains[0].verdict.word, same.better, same.certain) == (SAME, False, True)
    # Two rounds of a true gain of 1.16 with some noise: it is not said that there is none.
    unsure = compared([112, 120], [100, 100])
    assert (unsure.gains[0].verdict.word, unsure.better, unsure.certain) == (CANNOT_TELL, False, False)
    assert str(unsure.gains[0]).endswith(f"cannot tell, measure {unsure.gains[0].verdict.more_rounds} more rounds")
    assert unsure.gains[0].wanted_rounds in LOOKS.at
    assert compared([112], [100]).gains[0].wanted_rounds == LOOKS.at[0]


def test_a_choice_within_the_target_replaces_one_that_surely_misses_it() -> None:
    slower = compared([80, 81, 79], [100, 101, 99])
    assert not slower.better
    late = [replace(trial, latencies_us=tuple(3 * us + 1e5 for us in trial.latencies_us)) for trial in slower.current]
    missed = replace(slower, current=tuple(late))
    assert missed.better
    assert missed.decision.reason == "the current configuration does not answer 99 % of requests within 100 ms"
    # A choice that misses the target itself replaces nothing.
    assert not replace(missed, final=tuple(replace(trial, candidate=CHOSEN) for trial in late)).better


def noisy(path: Path, rounds: int | None) -> StudyLog:
    """The record of a search in a world whose trials differ by 20 %; the current configuration meets the target."""
    world = InventedWorld.drawn(36, noise=0.2)
    search = world.search(path)
    search.budget = replace(search.budget, rounds=rounds)
    search.run()
    return search.log


@pytest.mark.slow
def test_rounds_are_measured_until_they_are_certain(tmp_path: Path) -> None:
    """More rounds come on top of the budget, and those on record are not measured again."""
    few = noisy(tmp_path / "study.json", None)
    assert [trial.stage for trial in few.study.trials].count(FINAL) == LOOKS.at[0]
    more = noisy(tmp_path / "study.json", 12)
    final = [trial for trial in more.study.trials if trial.stage == FINAL]
    assert len(final) in LOOKS.at[1:]
    assert more.measured_now == 2 * (len(final) - LOOKS.at[0])
    assert more.study.trials[: len(few.study.trials)] == few.study.trials
    assert isinstance(more.bench, FormulaBench)
    assert LOOKS.at == program.ROUNDS
