"""Gains over the current configuration: their intervals, levels, noise and verdicts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import CHOSEN, DEFAULT, study

from perf.records.last_comparison import LOOKS, THROUGHPUT, Gain
from perf.records.study import AGAINST, HALVING, NOISE
from perf.report.study.gain import gains, sentence
from perf.report.study.verdict import verdict
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER
from tests.perf.report.study.test_verdict import both_pass, evidence


def test_a_gain_in_a_closed_loop_comes_with_interval_rounds_requests_and_noise() -> None:
    tuning = both_pass(study("closed:16"))
    first, second = gains(evidence(tuning))
    assert (first.name, second.name) == ("throughput", "p99")
    ours, theirs = (
        [
            trial.throughput_rows_per_s
            for trial in tuning.trials
            if (trial.stage, trial.candidate) == (AGAINST, candidate)
        ]
        for candidate in (CHOSEN, DEFAULT)
    )
    again = [trial.throughput_rows_per_s for trial in tuning.trials if trial.stage == NOISE]
    # Each round has a trial of each, and one more of the default.
    level = LOOKS.level_at(6)
    assert first.interval == rounds.paired(ours, theirs, level=level)
    assert first.noise == rounds.paired(again, theirs, level=level)
    assert first.verdict.word == FASTER
    assert verdict(evidence(tuning)).title.endswith(f": use {CHOSEN}, with throughput x {first.interval.value:.2f}")
    # The page has one throughput of each: that of all rounds together, as in its table.
    (rate,) = {row[2] for row in verdict(evidence(tuning)).grids[0].rows if row[0].startswith(str(CHOSEN))}
    assert f"throughput {rate} instead of " in sentence(first, evidence(tuning))
    text = sentence(first, evidence(tuning))
    assert "n = 4 interleaved rounds, 5,600 requests" in text
    assert f"the A/A noise is x {first.noise} (4 pairs): faster" in text


def test_the_level_that_an_interval_has_is_the_one_that_is_named() -> None:
    """Four rounds are judged at the level of the look after six; 95 % is said of no interval of a gain."""
    tuning = both_pass(study("closed:16"))
    section = verdict(evidence(tuning))
    named = f"{100 * LOOKS.level_at(6):.4g} % interval"
    assert named == "98.21 % interval"
    texts = [section.sentences[0], *(text for text in section.sentences if text.startswith("Over the current"))]
    assert len(texts) == 3
    assert all(named in text and "95 %" not in text for text in texts)


def test_with_one_default_more_than_a_round_has_all_of_them_are_compared_in_turn() -> None:
    """The order of `perf.tune`: default, choice, default, choice, default, choice."""
    trials = [trial for trial in study("closed:16").trials if trial.stage in (AGAINST, NOISE)]
    ours = [trial for trial in trials if trial.candidate == CHOSEN][:3]
    theirs = [replace(trial, stage=stage) for trial, stage in zip(trials[1::3], (AGAINST, NOISE, NOISE), strict=False)]
    pairs = evidence(replace(study("closed:16"), trials=(*ours, *theirs))).pairs
    assert pairs == tuple(zip(ours, theirs, strict=True))


def test_figures_are_of_trials_that_were_made_after_the_choice() -> None:
    """The trials that chose it were good, by chance as well."""
    tuning = study("closed:16")
    lucky = tuple(
        replace(trial, throughput_rows_per_s=9000.0) if (trial.stage, trial.candidate) == (HALVING, CHOSEN) else trial
        for trial in tuning.trials
    )
    assert {trial.throughput_rows_per_s for trial in lucky if trial.stage == HALVING} > {9000.0}
    sections = [verdict(evidence(replace(tuning, trials=trials))) for trials in (tuning.trials, lucky)]
    assert sections[0] == sections[1]
    # Those that were not compared have no others.
    alone = evidence(replace(tuning, trials=tuple(trial for trial in lucky if trial.stage == HALVING)))
    assert [trial.throughput_rows_per_s for trial in alone.of(CHOSEN)] == [9000.0]


def interval_of(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high, level=0.95, count=14, method="m")


def gain_of(interval: Interval, *, noise: Interval | None = None, higher: bool = True) -> Gain:
    quantity = replace(THROUGHPUT, more_is_better=higher)
    return Gain(quantity=quantity, choice=interval.value, current=1.0, interval=interval, noise=noise)


@pytest.mark.parametrize(
    ("interval", "noise", "higher", "word"),
    [
        ((1.1, 1.2, 1.3), (0.5, 1.1, 2.0), True, FASTER),
        ((1.1, 1.2, 1.3), None, True, FASTER),
        # The current configuration surely differs from itself by 15 %: 1.1 / 1.15 < 1.
        ((1.1, 1.2, 1.3), (1.05, 1.15, 1.3), True, CANNOT_TELL),
        ((1.1, 1.2, 1.3), (0.8, 0.9, 0.95), True, CANNOT_TELL),
        ((1.1, 1.2, 1.3), (1.04, 1.05, 1.06), True, FASTER),
        ((0.9, 1.2, 1.5), None, True, CANNOT_TELL),
        ((0.98, 1.0, 1.02), None, True, SAME),
        ((1.1, 1.2, 1.3), None, False, SLOWER),
        ((0.7, 0.8, 0.9), None, False, FASTER),
        ((0.7, 0.8, 0.9), None, True, SLOWER),
    ],
)
def test_a_gain_needs_an_interval_without_1_that_is_more_than_the_noise(
    interval: tuple[float, float, float], noise: tuple[float, float, float] | None, higher: bool, word: str
) -> None:
    found = gain_of(interval_of(*interval), noise=interval_of(*noise) if noise else None, higher=higher)
    assert found.verdict.word == word


@given(value=st.floats(0.2, 5), below=st.floats(0.01, 1), above=st.floats(1, 10), higher=st.booleans())
def test_an_interval_that_holds_1_is_never_a_gain_or_a_loss(
    value: float, below: float, above: float, higher: bool
) -> None:
    interval = interval_of(value * below, value, value * above)
    certain = gain_of(interval, higher=higher).verdict.word in (FASTER, SLOWER)
    within = interval.low >= 1 / 1.03 and interval.high <= 1.03
    assert certain == (not within and not interval.low <= 1 <= interval.high)
