from dataclasses import replace

import pytest
from studies import CHOSEN, DEFAULT, study

from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import Study
from perf.report.study.evidence import Evidence, quantile_of
from perf.report.study.gain import gains, sentence
from perf.report.study.verdict import verdict
from perf.stats.verdict import CANNOT_TELL, SAME

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
    found = quantile_of(evidence(study()).of(CHOSEN), 99)
    interval = f"95 % interval {found.low_ms:.1f} to {found.high_ms:.1f} ms"
    assert section.title == f"p99 <= 40 ms: met (p99 {found.value_ms:.1f} ms, {interval}): use {CHOSEN}"
    assert section.sentences[0] == ("Because the current configuration does not answer 99 % of requests within 40 ms.")
    assert "0 of 2,800 requests late (0.0 %, allowed 1.0 %) in 4 windows, worth 655 " in section.sentences[1]
    assert "the target is met, at 99 % confidence" in section.sentences[1]
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

    def using(choice: float, limits: Limits) -> tuple[str, str]:
        used = {DEFAULT: 812.0, CHOSEN: choice}
        trials = (
            replace(trial, used=ResourceUse(server_memory_mib=used.get(trial.candidate))) for trial in tuning.trials
        )
        section = verdict(evidence(replace(tuning, trials=tuple(trials), limits=limits)))
        return section.title.partition("): ")[2], section.sentences[0]

    limits, plain = Limits(server_memory_mib=600), verdict(evidence(tuning)).title.partition("): ")[2]
    over = "812.0 MiB of memory (--memory-mib 600)"
    assert using(420, limits) == (f"use {CHOSEN}", f"Because the current configuration used {over}.")
    assert plain.startswith("keep")
    assert using(420, Limits())[0] == plain
    kept = f"Because {CHOSEN} used 900.0 MiB of memory (--memory-mib 600)."
    assert using(900, limits) == (f"keep {DEFAULT}", kept)


@pytest.mark.parametrize("load", ["poisson:380", "closed:16"])
@pytest.mark.parametrize("passing", [True, False])
def test_a_difference_that_is_not_certain_never_reads_as_a_win(load: str, passing: bool) -> None:
    tuning = study(load, same=True)
    tuning = both_pass(tuning) if passing else tuning
    section = verdict(evidence(tuning))
    assert f": keep {DEFAULT}" in section.title
    assert not any(sentence.rstrip(".").endswith((": faster", ": slower")) for sentence in section.sentences)
    for gain in section.data["gains"]:  # type: ignore[attr-defined]
        assert gain["verdict"] in (SAME, CANNOT_TELL)


def test_a_loss_keeps_the_current_configuration() -> None:
    tuning = both_pass(study("closed:16"))
    slow = tuple(
        replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s / 3) if trial.candidate == CHOSEN else trial
        for trial in tuning.trials
    )
    section = verdict(evidence(replace(tuning, trials=slow)))
    assert section.title.endswith(f": keep {DEFAULT}")
    assert section.sentences[0].startswith(f"Because {CHOSEN} is slower: its throughput is 4")


def test_the_page_has_one_throughput_of_all_windows_and_the_next_step() -> None:
    tuning = replace(both_pass(study("closed:16")), after_pbtxt="max_batch_size: 16")
    trials = evidence(tuning).of(CHOSEN)
    mean = sum(trial.requests for trial in trials) / sum(trial.seconds for trial in trials)
    section = verdict(evidence(tuning))
    assert any(f"Throughput: {mean:.0f} rows/s in all windows together" in sentence for sentence in section.sentences)
    assert section.grids[0].rows[0][2] == f"{mean:.0f}"
    serve = "To serve it (until the next tuning replaces it): triton-batching serve --model ranker --config-name tuned."
    assert serve in section.sentences
    kept = verdict(evidence(both_pass(study("closed:16", same=True))))
    assert "To serve it: triton-batching serve --model ranker." in kept.sentences


def test_the_current_configuration_can_be_the_best() -> None:
    alone = tuple(trial for trial in study().trials if trial.candidate == DEFAULT)
    section = verdict(evidence(replace(study(), chosen=DEFAULT, trials=alone)))
    assert section.title.endswith(": keep max 4, 0 ms, 1 instance")
    assert section.sentences[0] == "Because nothing is expected to beat it."
    assert section.grids[0].rows[0][0] == "max 4, 0 ms, 1 instance (current)"
    assert section.missing == ()


def test_the_candidate_that_was_compared_and_not_chosen_is_named() -> None:
    """The tuner keeps the current configuration and prints how the other compared, and so does the page."""
    tuning = study("closed:16")
    (first, _) = gains(evidence(tuning))
    kept = evidence(replace(tuning, chosen=DEFAULT))
    section = verdict(kept)
    assert gains(kept) == ()
    assert section.title.endswith(f": keep {DEFAULT}")
    assert section.sentences[0] == f"Because the study did not choose {CHOSEN}."
    text = f"{CHOSEN}, which was compared last, over the current configuration: {sentence(first, kept)}."
    assert text in section.sentences
