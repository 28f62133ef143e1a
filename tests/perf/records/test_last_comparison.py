"""Which trials of a study are its last comparison, and what is said of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from studies import CHOSEN, DEFAULT, study

from perf.records.candidate import Candidate
from perf.records.last_comparison import LOOKS, P99, THROUGHPUT, LastComparison, last_comparison
from perf.records.study import AGAINST, FINAL, HALVING, NOISE, Study, Trial
from perf.stats import rounds
from perf.stats.verdict import CANNOT_TELL, FASTER

REJECTED = Candidate(max_batch_size=32, delay_us=4000)
# Candidate, stage and round of a trial, in the order of measurement.
Kind = tuple[Candidate, str, int]


def trials(*kinds: Kind, load: str = "closed:16") -> tuple[Trial, ...]:
    """Trials whose throughput is 100 plus their place, so that each can be told from the others."""
    return tuple(
        replace(
            study("closed:16").trials[0],
            candidate=candidate,
            stage=stage,
            round=number,
            load=load,
            throughput_rows_per_s=100.0 + place,
        )
        for place, (candidate, stage, number) in enumerate(kinds)
    )


def studied(*kinds: Kind, chosen: Candidate | None = CHOSEN) -> Study:
    return replace(study("closed:16"), chosen=chosen, trials=trials(*kinds))


def places(read: Sequence[Trial]) -> list[int]:
    return [round(trial.throughput_rows_per_s - 100) for trial in read]


def test_each_round_has_a_trial_of_both_in_alternating_order() -> None:
    """The order of `perf.tune`: the current configuration is `AGAINST` once and `NOISE` after that."""
    read = last_comparison(
        studied(
            *((DEFAULT, HALVING, 1), (CHOSEN, HALVING, 1)),
            *((DEFAULT, AGAINST, 1), (CHOSEN, FINAL, 1)),
            *((CHOSEN, FINAL, 2), (DEFAULT, NOISE, 2)),
            *((DEFAULT, NOISE, 3), (CHOSEN, FINAL, 3)),
            *((CHOSEN, FINAL, 4), (DEFAULT, NOISE, 4)),
        )
    )
    assert [places(pair) for pair in read.pairs] == [[3, 2], [4, 5], [7, 6], [8, 9]]
    # No trial is in two A/A pairs, and the later one is first.
    assert [places(pair) for pair in read.twins] == [[5, 2], [9, 6]]


def test_rounds_of_a_rejected_choice_are_not_of_the_last_one() -> None:
    """The only trial `AGAINST` is of the first choice; the other trials of the current configuration are `NOISE`."""
    read = last_comparison(
        studied(
            *((DEFAULT, AGAINST, 1), (REJECTED, FINAL, 1)),
            *((REJECTED, FINAL, 2), (DEFAULT, NOISE, 2)),
            *((DEFAULT, NOISE, 21), (CHOSEN, FINAL, 21)),
            *((CHOSEN, FINAL, 22), (DEFAULT, NOISE, 22)),
        )
    )
    assert [places(pair) for pair in read.pairs] == [[5, 4], [6, 7]]
    assert [places(pair) for pair in read.twins] == [[7, 4]]


def test_a_round_may_have_a_second_trial_of_the_current_configuration() -> None:
    read = last_comparison(
        studied(
            *((CHOSEN, AGAINST, 1), (DEFAULT, AGAINST, 1), (DEFAULT, NOISE, 1)),
            *((DEFAULT, NOISE, 2), (DEFAULT, AGAINST, 2), (CHOSEN, AGAINST, 2)),
        )
    )
    assert [places(pair) for pair in read.pairs] == [[0, 1], [5, 4]]
    assert [places(pair) for pair in read.twins] == [[2, 1], [3, 4]]


def test_trials_under_another_load_are_not_compared() -> None:
    kinds = (DEFAULT, AGAINST, 1), (CHOSEN, FINAL, 1)
    both = (*trials(kinds[0]), *trials(kinds[1], load="closed:8"))
    assert last_comparison(replace(studied(), trials=both)).pairs == ()
    # The choice's own rounds under the study's load count, and not its trials under others.
    more = (*both, *trials(*kinds, load="closed:16"))
    assert len(last_comparison(replace(studied(), trials=more)).pairs) == 1


def test_a_candidate_that_was_not_better_is_compared_and_not_chosen() -> None:
    kinds = (DEFAULT, AGAINST, 1), (CHOSEN, FINAL, 1), (CHOSEN, FINAL, 2), (DEFAULT, NOISE, 2)
    read = last_comparison(studied(*kinds, chosen=DEFAULT))
    assert read.candidate == CHOSEN
    assert [places(pair) for pair in read.pairs] == [[1, 0], [2, 3]]


def compared(new: Sequence[float], old: Sequence[float], again: Sequence[float] = ()) -> LastComparison:
    """Trials with these throughputs."""
    sides = [
        tuple(replace(study("closed:16").trials[0], candidate=candidate, throughput_rows_per_s=rate) for rate in rates)
        for candidate, rates in ((CHOSEN, new), (DEFAULT, old), (DEFAULT, again))
    ]
    return LastComparison(choice=sides[0], current=sides[1], again=sides[2])


@pytest.mark.parametrize(("count", "look"), [(1, 6), (2, 6), (6, 6), (7, 12), (12, 12), (13, 24), (24, 24), (30, 24)])
def test_an_interval_has_the_level_of_the_next_planned_look(count: int, look: int) -> None:
    gain = compared([120.0 + turn for turn in range(count)], [100.0] * count).gain(THROUGHPUT)
    assert gain.interval.level == LOOKS.level_at(look)
    assert gain.interval.count == count


def test_a_verdict_knows_that_the_current_configuration_differs_from_itself() -> None:
    """A gain of 10 % is not certain where the same configuration surely gains 15 % when it is measured again."""
    new, old, again = ([rate * factor for factor in (1.0, 1.001, 0.999)] for rate in (110.0, 100.0, 115.0))
    new[0] *= 1.001
    quiet, noisy = compared(new, old).gain(THROUGHPUT), compared(new, old, sorted(again)).gain(THROUGHPUT)
    assert quiet.verdict.word == FASTER
    assert noisy.interval == quiet.interval
    assert noisy.noise == rounds.paired(sorted(again), old, level=LOOKS.level_at(LOOKS.at[0]))
    assert (noisy.verdict.word, noisy.verdict.more_rounds, noisy.wanted_rounds) == (CANNOT_TELL, None, None)


def test_without_a_value_there_is_no_ratio_and_a_reason() -> None:
    lost = compared([300.0, 303.0], [0.0, 100.0])
    gain = lost.gain(THROUGHPUT)
    assert str(gain) == "throughput: no ratio, the current configuration answered no request in 1 of 2 rounds"
    assert (gain.known, gain.verdict.word, gain.noise, gain.wanted_rounds) == (False, CANNOT_TELL, None, None)
    unanswered = tuple(replace(trial, latencies_us=(math.inf,) * 10, requests=10) for trial in lost.choice)
    p99 = replace(lost, choice=unanswered).gain(P99)
    assert str(p99).startswith("p99: no ratio, the choice left more than 1 % of the requests without an answer")
    assert p99.choice == math.inf
