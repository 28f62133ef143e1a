from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import CHOSEN, DEFAULT, impossible, study

from perf.records.last_comparison import LOOKS, THROUGHPUT, Gain
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import AGAINST, HALVING, NOISE, Study
from perf.report.study.difference import difference
from perf.report.study.evidence import Evidence
from perf.report.study.gain import gains, sentence
from perf.report.study.noise import noise
from perf.report.study.verdict import verdict
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER

PASSING = {"passed": True, "late": 0}


def evidence(tuning: Study) -> Evidence:
    return Evidence(study=tuning, name="study")


def both_pass(tuning: Study) -> Study:
    """The same study with nobody late, so that only speed tells the configurations apart."""
    trials = (
        replace(trial, **PASSING, latencies_us=tuple(min(us, 39e3) for us in trial.latencies_us))  # type: ignore[arg-type]
        for trial in tuning.trials
    )
    return replace(tuning, trials=tuple(trials))


def test_the_chosen_candidate_is_recommended_when_the_current_one_misses_the_target() -> None:
    section = verdict(evidence(study()))
    assert section.title == (
        f"Use {CHOSEN}, because it meets 99 % of requests within 40 ms and the current configuration does not"
    )
    assert "0 of 2,800 requests late (0.0 %, allowed 1.0 %) in 4 windows, worth 655 " in section.sentences[0]
    assert "the target is met, at 99 % confidence" in section.sentences[0]
    assert section.data["passes"] is True
    assert section.data["current_passes"] is False


def test_what_the_server_used_is_said_of_the_choice_and_the_current_one() -> None:
    def using(tuning: Study) -> Study:
        """Each trial of a comparison uses more than the one before it; the choice also has a GPU."""
        trials = (
            replace(
                trial,
                used=ResourceUse(
                    server_cores=1 + number / 100,
                    server_memory_mib=300.0,
                    gpu_busy=0.5 if trial.candidate == CHOSEN else None,
                ),
            )
            for number, trial in enumerate(tuning.trials)
        )
        return replace(tuning, trials=tuple(trials))

    plain, shown = verdict(evidence(study())), verdict(evidence(using(study())))
    assert plain.data["used"] == {}
    added = [sentence for sentence in shown.sentences if sentence not in plain.sentences]
    # Of the 20 trials the last rounds are A, default and default again; the last of A is the 18th.
    assert added == [
        f"The server used at most 1.17 cores, 300.0 MiB of memory, GPUs 50% busy with {CHOSEN} (chosen); "
        f"1.19 cores, 300.0 MiB of memory with {DEFAULT} (current)."
    ]
    assert shown.data["used"][f"{DEFAULT} (current)"] == {  # type: ignore[index]
        "server_cores": 1.19,
        "server_memory_mib": 300.0,
        "gpu_busy": None,
        "gpu_memory_mib": None,
    }


def test_a_choice_within_the_limits_replaces_a_current_configuration_that_is_not() -> None:
    """Even if it is no faster: it was chosen for the limits."""
    tuning = both_pass(study("closed:16", same=True))

    def using(choice: float, limits: Limits) -> str:
        used = {DEFAULT: 812.0, CHOSEN: choice}
        trials = (
            replace(trial, used=ResourceUse(server_memory_mib=used.get(trial.candidate))) for trial in tuning.trials
        )
        return verdict(evidence(replace(tuning, trials=tuple(trials), limits=limits))).title

    limits, plain = Limits(server_memory_mib=600), verdict(evidence(tuning)).title
    over = "812.0 MiB of memory (--memory-mib 600)"
    assert using(420, limits) == f"Use {CHOSEN}, because the current configuration used {over}"
    assert not plain.startswith("Use")
    assert using(420, Limits()) == using(900, limits) == plain


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
    assert verdict(evidence(tuning)).title.startswith(f"Use {CHOSEN}, because its throughput is 6")
    text = sentence(first, evidence(tuning))
    assert "n = 4 interleaved rounds, 5,600 requests" in text
    assert f"the A/A noise is x {first.noise} (4 pairs): faster" in text


def test_the_level_that_an_interval_has_is_the_one_that_is_named() -> None:
    """Four rounds are judged at the level of the look after six; 95 % is said of no interval of a gain."""
    tuning = both_pass(study("closed:16"))
    section = verdict(evidence(tuning))
    named = f"{100 * LOOKS.level_at(6):.4g} % interval"
    assert named == "98.69 % interval"
    texts = [section.title, *(text for text in section.sentences if text.startswith("Over the current"))]
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


@pytest.mark.parametrize("load", ["poisson:380", "closed:16"])
@pytest.mark.parametrize("passing", [True, False])
def test_a_difference_that_is_not_certain_never_reads_as_a_win(load: str, passing: bool) -> None:
    tuning = study(load, same=True)
    tuning = both_pass(tuning) if passing else tuning
    section = verdict(evidence(tuning))
    assert section.title.startswith(("Cannot tell whether ", "Keep ") if passing else ("Cannot tell", "Not verified: "))
    assert not any(sentence.rstrip(".").endswith((": faster", ": slower")) for sentence in section.sentences)
    for gain in section.data["gains"]:  # type: ignore[attr-defined]
        assert gain["verdict"] in (SAME, CANNOT_TELL)


def interval_of(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high, level=0.95, count=4, method="m")


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


def test_a_loss_keeps_the_current_configuration() -> None:
    tuning = both_pass(study("closed:16"))
    slow = tuple(
        replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s / 3) if trial.candidate == CHOSEN else trial
        for trial in tuning.trials
    )
    section = verdict(evidence(replace(tuning, trials=slow)))
    assert section.title.startswith(f"Keep {DEFAULT}: {CHOSEN} is worse, its throughput is 4")


def test_an_infeasible_study_names_the_closest_and_recommends_nothing() -> None:
    tuning = replace(study(), chosen=None, after_pbtxt="")
    section = verdict(evidence(tuning))
    assert section.title.startswith("No measured configuration meets 99 % of requests within 40 ms under poisson:380")
    compared = {trial.candidate for trial in tuning.trials if trial.stage == AGAINST}
    pooled = {
        candidate: [
            us
            for trial in tuning.trials
            if (trial.candidate, trial.load) == (candidate, tuning.load)
            and (candidate not in compared or trial.stage != HALVING)
            for us in trial.latencies_us
        ]
        for candidate in {trial.candidate for trial in tuning.trials}
    }
    tails = {candidate: float(np.quantile(us, 0.99, method="inverted_cdf")) / 1e3 for candidate, us in pooled.items()}
    nearest = min(tails, key=lambda candidate: tails[candidate])
    assert f"the closest is {nearest} with p99 {tails[nearest]:.1f} ms" in section.title
    assert section.sentences[-1].startswith(
        f"Targets that can be met: the lowest measured p99 is {tails[nearest]:.1f} ms"
    )
    assert "the lowest simulated p99 is 21.8 ms (max 16, 0 ms, 1 instance)" in section.sentences[-1]
    assert "stays" in difference(evidence(tuning)).missing[0]


def test_where_every_request_is_late_the_closest_has_the_lowest_percentile() -> None:
    tuning = impossible()
    assert {trial.late for trial in tuning.trials} == {700}
    tails = {
        trial.candidate: float(np.quantile(trial.latencies_us, 0.99, method="inverted_cdf")) for trial in tuning.trials
    }
    nearest = min(tails, key=lambda candidate: tails[candidate])
    assert nearest != tuning.trials[0].candidate
    shown = evidence(tuning)
    assert shown.shown == nearest
    assert f"the closest is {nearest} with p99" in verdict(shown).title
    assert f"({nearest})" in verdict(shown).sentences[-1]


def test_the_page_has_one_throughput_of_all_windows_and_the_next_step() -> None:
    tuning = replace(both_pass(study("closed:16")), after_pbtxt="max_batch_size: 16")
    trials = evidence(tuning).of(CHOSEN)
    mean = sum(trial.requests for trial in trials) / sum(trial.seconds for trial in trials)
    section = verdict(evidence(tuning))
    assert any(f"Throughput: {mean:.0f} rows/s in all windows together" in sentence for sentence in section.sentences)
    assert section.grids[0].rows[0][2] == f"{mean:.0f}"
    assert "To serve it (until the next tuning replaces it): make serve MODEL=ranker CONFIG=tuned." in section.sentences
    kept = verdict(evidence(both_pass(study("closed:16", same=True))))
    assert not [sentence for sentence in kept.sentences if "make serve" in sentence]


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
    assert str(first.verdict) in section.title
    rounds_in_all = 4 + first.verdict.more_rounds
    assert (
        f"To be certain: python -m perf.compare.versus ranker default tuned --load closed:16 --p99-ms 40 --rows 2 "
        f"--repository mine --most-rounds {rounds_in_all}."
    ) in section.sentences


def test_an_unfinished_study_has_no_verdict() -> None:
    tuning = replace(study(), chosen=None, after_pbtxt="", limit="", trials=study().trials[:5])
    assert verdict(evidence(tuning)).title.startswith("No verdict")


def test_the_current_configuration_can_be_the_best() -> None:
    section = verdict(evidence(replace(study(), chosen=DEFAULT)))
    assert section.title.startswith("Keep max 4, 0 ms, 1 instance: no better configuration")
    assert section.missing == ()


def test_the_candidate_that_was_compared_and_not_chosen_is_named() -> None:
    """The tuner keeps the current configuration and prints how the other compared, and so does the page."""
    tuning = study("closed:16")
    (first, _) = gains(evidence(tuning))
    kept = evidence(replace(tuning, chosen=DEFAULT))
    section = verdict(kept)
    assert gains(kept) == ()
    assert section.title.startswith(f"Keep {DEFAULT}: no better configuration was found")
    text = f"{CHOSEN}, which was compared last, over the current configuration: {sentence(first, kept)}."
    assert text in section.sentences


def test_a_study_that_was_interrupted_says_nothing_of_other_targets() -> None:
    section = verdict(evidence(replace(study(), chosen=None, limit="")))
    assert section.title.startswith("No verdict")
    assert not any("Targets that can be met" in sentence for sentence in section.sentences)


def test_the_difference_shows_delay_sizes_and_instances_and_the_whole_file() -> None:
    section = difference(evidence(study()))
    assert section.sentences == ("2 of 6 values change.",)
    assert section.grids[0].rows[2] == ("max_queue_delay_microseconds", "0 µs", "1,000 µs", "changed")
    changed, whole = section.listings
    kinds = {line: kind for kind, line in changed.lines}
    assert kinds["-max_batch_size: 4"] == "removed"
    assert kinds["+  max_queue_delay_microseconds: 1000"] == "added"
    assert kinds["+++ tuned"] == kinds["@@ -1,5 +1,9 @@"] == ""
    assert whole.text == study().after_pbtxt


def test_a_noisy_machine_has_a_banner_and_a_calm_one_has_none() -> None:
    tuning = both_pass(study("closed:16"))
    assert noise(evidence(tuning)).banner == ""
    wild = tuple(
        replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s * 1.3) if trial.stage == NOISE else trial
        for trial in tuning.trials
    )
    assert (
        "the same configuration measured again differs from itself, throughput x 1."
        in noise(evidence(replace(tuning, trials=wild))).banner
    )
    crowded = tuple(replace(trial, load_average=20.0) for trial in tuning.trials)
    assert "load average 20.0 on 2 cores" in noise(evidence(replace(tuning, trials=crowded))).banner
