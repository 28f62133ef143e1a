"""Intervals over rounds: they hold the true ratio as often as they say, and more rounds find a gain more often."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from perf.stats import rounds
from perf.stats.looks import Looks
from perf.stats.verdict import (
    CANNOT_TELL,
    FASTER,
    SAME,
    SLOWER,
    Verdict,
    level_of_each,
    rounds_until,
    verdict,
)

TRUE = 1.1


def measured(repeats: int, count: int, ratio: float, spread: float, seed: int) -> tuple[list[list[float]], ...]:
    """Rates of B and of A, (repeats, count) each: rounds differ by 10 %, the sides of a round by `spread` each."""
    rng = np.random.default_rng(seed)
    drift, old, new = (rng.normal(0, deviation, (repeats, count)) for deviation in (0.1, spread, spread))
    return (ratio * np.exp(drift + new)).tolist(), np.exp(drift + old).tolist()


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    new, old = measured(2000, count, TRUE, 0.02, seed=count)
    paired = [rounds.paired(b, a) for b, a in zip(new, old, strict=True)]
    # Three standard errors of 2,000 are 1.5 %.
    assert 0.935 <= np.mean([each.low <= TRUE <= each.high for each in paired]) <= 0.965
    apart = [rounds.unpaired(b, a) for b, a in zip(new, old, strict=True)]
    assert np.mean([each.low <= TRUE <= each.high for each in apart]) >= 0.935
    # What the sides of a round have in common makes only the interval of independent runs wider.
    assert np.median([each.high / each.low for each in paired]) < np.median([each.high / each.low for each in apart])


def test_two_of_the_same_differ_in_one_of_twenty_cases() -> None:
    """A/A, 20,000 times: false alarms are at most the nominal 5 % and 1 % more."""
    new, old = measured(20_000, 5, 1.0, 0.03, seed=1)
    alarms = sum(rounds.paired(b, a).excludes_one for b, a in zip(new, old, strict=True))
    assert alarms <= 0.06 * 20_000


@pytest.mark.slow
def test_rounds_that_are_added_until_it_is_certain_find_no_gain_where_there_is_none() -> None:
    """A look after 3, 5, 10 and 20 rounds of the same: at most 5 % and 1 % more; with plain intervals far more."""
    looks = Looks(at=(3, 5, 10, 20))
    new, old = measured(5000, 20, 1.0, 0.03, seed=3)
    alarms = {"plain": 0, "spent": 0}
    for b, a in zip(new, old, strict=True):
        for name in alarms:
            levels = [looks.level_at(count) if name == "spent" else 0.95 for count in looks.at]
            intervals = [
                rounds.paired(b[:count], a[:count], level=level) for count, level in zip(looks.at, levels, strict=True)
            ]
            alarms[name] += any(each.excludes_one for each in intervals)
    assert alarms["spent"] <= 0.06 * 5000
    assert alarms["plain"] > 0.10 * 5000


def test_eight_comparisons_of_the_same_have_no_difference_in_nineteen_of_twenty_cases() -> None:
    new, old = measured(8 * 1000, 5, 1.0, 0.05, seed=4)
    level = level_of_each(8)
    alarms = np.array([rounds.paired(b, a, level=level).excludes_one for b, a in zip(new, old, strict=True)])
    assert np.mean(np.any(alarms.reshape(1000, 8), axis=1)) <= 0.06 + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 10, 13, 14, 20])
def test_a_round_in_five_that_is_slow_is_not_missed(count: int) -> None:
    """B is 7 % slower on average, because one round of five is 30 % slower. 5,000 comparisons."""
    rng = np.random.default_rng(count)
    ratios = np.exp(rng.normal(0, 0.007, (5_000, count))) * np.where(rng.random((5_000, count)) < 0.2, 0.7, 1.0)
    found = [verdict(rounds.paired(each, [1.0] * count), more_is_better=True).word for each in ratios.tolist()]
    assert found.count(SAME) <= 0.06 * 5_000
    # Rounds that are really alike are called the same from 14 on.
    alike = np.exp(rng.normal(0, 0.007, (500, count))).tolist()
    words = [verdict(rounds.paired(each, [1.0] * count), more_is_better=True).word for each in alike]
    assert (words.count(SAME) > 0.99 * 500) is (count >= 14)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.1, 0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_few_rounded_rounds_hold_the_truth(count: int, spread: float) -> None:
    """Whole numbers of about 100 that vary by `spread`: equal ones had an interval without width."""
    rng = np.random.default_rng(7)
    truth = 100 + rng.random((4000, 1))
    rounded = np.round(truth + spread * rng.normal(size=(4000, count))).tolist()
    means = [rounds.mean(each) for each in rounded]
    assert np.mean([each.low <= true <= each.high for each, true in zip(means, truth[:, 0], strict=True)]) >= 0.935


def test_equal_rounds_have_no_interval() -> None:
    for interval in (
        rounds.paired([5.5] * 3, [5.0] * 3),
        rounds.paired([1.1, 2.2], [1.0, 2.0]),
        rounds.mean([5.0] * 9),
    ):
        assert (interval.low, interval.high, interval.method) == (0.0, math.inf, "no interval")
        assert str(verdict(interval, more_is_better=True)) == CANNOT_TELL
    assert not rounds.unpaired([2.0, 2.0], [1.0, 1.0]).excludes_one
    assert not rounds.unpaired([2.0, 2.0], [1.0, 1.01]).excludes_one


def test_students_t_by_hand() -> None:
    three = rounds.paired([1.1, 1.21, 1.331], [1.0, 1.1, 1.1])
    # Logarithms 1, 1, 2 x log 1.1: mean 4/3, standard error 1/3, t 4.303.
    step = math.log(1.1)
    assert (three.value, three.low, three.high) == pytest.approx(
        [math.exp(step * (4 / 3 + sign * 4.3027 / 3)) for sign in (0, -1, 1)], rel=1e-4
    )
    one = rounds.paired([1.1], [1.0])
    assert (one.low, one.high, one.excludes_one) == (0.0, math.inf, False)
    assert not rounds.unpaired([1.1], [1.0, 1.0]).excludes_one
    for interval in (rounds.paired, rounds.unpaired):
        assert interval([1e308], [1e-300]).value == math.inf
        assert interval([1e308, 1e300], [1.0, 1.1]).high == math.inf


@pytest.mark.parametrize(
    ("new", "word", "text"),
    [
        ([1.10, 1.11, 1.12], FASTER, "faster"),
        ([0.90, 0.91, 0.92], SLOWER, "slower"),
        ([1.000, 1.001] * 7, SAME, "the same within 3%"),
        # Faster by 1 % is not more than a model differs from itself.
        ([1.010, 1.011] * 7, SAME, "the same within 3%"),
        ([1.010, 1.011] * 6, CANNOT_TELL, "cannot tell, measure 2 more rounds"),
        ([1.010, 1.011, 1.009], CANNOT_TELL, "cannot tell, measure 11 more rounds"),
        ([1.0], CANNOT_TELL, "cannot tell, measure 2 more rounds"),
        # Two rounds 15 % apart, by Student's t: 12.7 for two rounds, 4.3 for three.
        ([1.7, 2.0], CANNOT_TELL, "cannot tell, measure 1 more round"),
    ],
)
def test_verdicts(new: list[float], word: str, text: str) -> None:
    interval = rounds.paired(new, [1.0] * len(new))
    assert verdict(interval, more_is_better=True).word == word
    assert str(verdict(interval, more_is_better=True)) == text
    other = verdict(interval, more_is_better=False).word
    assert other == {FASTER: SLOWER, SLOWER: FASTER}.get(word, word)


def test_a_ratio_is_widened_by_what_makes_a_differ_from_itself() -> None:
    faster, slower = (rounds.paired([ratio, 1.01 * ratio, 0.99 * ratio], [1.0] * 3) for ratio in (1.10, 0.90))
    for noise in (faster, slower):
        assert verdict(faster, more_is_better=True, noise=noise) == Verdict(word=CANNOT_TELL, margin=0.03)
    for noise in (rounds.paired([1.3, 0.8], [1.0] * 2), rounds.paired([1.02, 1.021], [1.0] * 2)):
        assert verdict(faster, more_is_better=True, noise=noise).word == FASTER


def test_the_mean_of_repeats_by_hand() -> None:
    """Logarithms 0, 1, 2 x log 1.1: mean 1, standard error 1 / sqrt 3, t 4.303."""
    mean, step = rounds.mean([1.0, 1.1, 1.21]), math.log(1.1)
    assert (mean.value, mean.low, mean.high) == pytest.approx(
        [math.exp(step * (1 + sign * 4.3027 / math.sqrt(3))) for sign in (0, -1, 1)], rel=1e-4
    )
    assert str(rounds.mean([5.0])) == "5.000 (no interval)"
    # With as many repeats as are said it is within 10 %; with one less it is not.
    more = rounds_until(mean, math.log1p(0.1))
    assert more is not None
    half = {count: stdtrit(count - 1, 0.975) * step / math.sqrt(count) for count in (3 + more, 2 + more)}
    assert half[3 + more] < math.log1p(0.1) <= half[2 + more]
    assert rounds_until(rounds.mean([1.0, 1e9]), math.log1p(0.1)) is None
