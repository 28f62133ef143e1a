"""The command that a page proposes."""

from dataclasses import replace

from studies import CHOSEN, DEFAULT, study

from perf.records.study import AGAINST
from perf.report.study.gain import gains
from perf.report.study.next_step import with_rounds
from perf.report.study.verdict import verdict
from tests.perf.report.study.test_verdict import both_pass, evidence


def test_the_command_that_measures_until_it_is_certain_is_offered() -> None:
    """One round of four, with values apart by 20 %, in the order of the rounds."""
    tuning = both_pass(study("closed:16"))
    wild = tuple(
        replace(trial, throughput_rows_per_s=100.0 + 20 * (trial.round % 2) * (trial.candidate == CHOSEN))
        for trial in tuning.trials
    )
    command = (*tuning.command, "--rows", "2", "--repository", "mine")
    section = verdict(evidence(replace(tuning, trials=wild, command=command)))
    first = gains(evidence(replace(tuning, trials=wild)))[0]
    assert first.verdict.more_rounds is not None
    assert section.title.endswith(f": keep {DEFAULT} for now")
    rounds_in_all = 4 + first.verdict.more_rounds
    assert (
        f"To be certain: triton-batching versus ranker default tuned --load closed:16 --p99-ms 40 --rows 2 "
        f"--repository mine --rounds 5 --most-rounds {rounds_in_all}."
    ) in section.sentences


def test_the_offered_command_has_the_mix_of_the_study_and_quoted_paths() -> None:
    tuning = both_pass(study("closed:16"))
    wild = tuple(
        replace(
            trial,
            throughput_rows_per_s=100.0 + 20 * (trial.round % 2) * (trial.candidate == CHOSEN),
            load="closed:16 mix file:my sizes",
        )
        for trial in tuning.trials
    )
    command = (*tuning.command, "--mix=file:my sizes", "--repository=my models")
    mixed = replace(tuning, load="closed:16 mix file:my sizes", trials=wild, command=command)
    (offer,) = [text for text in verdict(evidence(mixed)).sentences if text.startswith("To be certain")]
    assert " --load closed:16 " in offer
    assert " --mix 'file:my sizes' --repository 'my models' " in offer


def test_the_proposed_rounds_are_not_fewer_than_those_of_the_first_look() -> None:
    """Three rounds and one more are four in all, and perf.compare.versus begins with five by itself."""
    tuning = both_pass(study("closed:16"))
    rates = {CHOSEN: (108.0, 110.0, 115.0)}
    three = tuple(
        replace(trial, throughput_rows_per_s=rates.get(trial.candidate, (100.0,) * 3)[trial.round - 1])
        for trial in tuning.trials
        if trial.stage == AGAINST and trial.round <= 3
    )
    section = verdict(evidence(replace(tuning, trials=three)))
    (offer,) = [sentence for sentence in section.sentences if sentence.startswith("To be certain")]
    first, most = (int(offer.rstrip(".").split(f"{name} ")[1].split()[0]) for name in ("--rounds", "--most-rounds"))
    assert first == most == 4


def test_a_study_that_kept_its_default_goes_on_with_the_planned_rounds() -> None:
    """Nothing was written, so there is no file to compare, and its own looks are planned."""
    tuning = both_pass(study("closed:16"))
    wild = tuple(
        replace(trial, throughput_rows_per_s=100.0 + 12 * (trial.round % 2) * (trial.candidate == CHOSEN))
        for trial in tuning.trials
    )
    command = ("python", "-m", "perf.tune", "ranker", "--rounds", "3", "--p99-ms", "40")
    kept = replace(tuning, chosen=DEFAULT, trials=wild, command=command)
    section = verdict(evidence(kept))
    assert section.title.endswith(f": keep {DEFAULT} for now")
    assert section.sentences[0].startswith(f"Because it is not certain that {CHOSEN} is better: ")
    assert "To serve it: triton-batching serve --model ranker." in section.sentences
    assert "cannot tell" not in section.title.lower()
    assert "To be certain: triton-batching tune ranker --p99-ms 40 --rounds 12." in section.sentences
    assert with_rounds(("x", "--rounds=3"), 6) == ["x", "--rounds", "6"]
