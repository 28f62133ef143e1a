import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import CHOSEN, DEFAULT, impossible, study

from perf.records.study import AGAINST, NOISE, Study
from perf.report.study.difference import difference
from perf.report.study.evidence import Evidence
from perf.report.study.gain import Gain, gains
from perf.report.study.noise import noise
from perf.report.study.verdict import passes, sustained, verdict
from perf.stats.interval import Interval

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
    assert "0 of 3,500 requests late (0.0 %, allowed 1.0 %) in 5 windows: the target is met" in section.sentences[0]
    assert section.data["passes"] is True
    assert section.data["current_passes"] is False


def test_a_gain_in_a_closed_loop_comes_with_interval_rounds_requests_and_noise() -> None:
    tuning = both_pass(study("closed:16"))
    first, second = gains(evidence(tuning))
    assert (first.what, second.what) == ("throughput", "p99")
    ours, theirs = (
        [
            trial.throughput_rows_per_s
            for trial in tuning.trials
            if (trial.stage, trial.candidate) == (AGAINST, candidate)
        ]
        for candidate in (CHOSEN, DEFAULT)
    )
    again = [trial.throughput_rows_per_s for trial in tuning.trials if trial.stage == NOISE]
    # the default's measurements in their order: against, noise, against, noise ...
    order = [value for pair in zip(theirs, again, strict=True) for value in pair]
    ratios = [math.log(a / b) for a, b in zip(ours, order, strict=False)]
    assert first.interval.value == pytest.approx(math.exp(sum(ratios) / 4))
    assert first.verdict == "gain"
    assert verdict(evidence(tuning)).title.startswith(f"Use {CHOSEN}, because its throughput is 6")
    assert "n = 4 interleaved rounds, 5,600 requests" in str(first)
    assert "the A/A noise is up to" in str(first)


@pytest.mark.parametrize("load", ["poisson:380", "closed:16"])
@pytest.mark.parametrize("passing", [True, False])
def test_a_difference_that_is_not_significant_never_reads_as_a_win(load: str, passing: bool) -> None:
    tuning = study(load, same=True)
    tuning = both_pass(tuning) if passing else tuning
    section = verdict(evidence(tuning))
    assert section.title.startswith("Not significant: " if passing else "Not verified: ")
    assert "Use" not in section.title
    assert not any(sentence.rstrip(".").endswith(": gain") for sentence in section.sentences)
    for gain in section.data["gains"]:  # type: ignore[attr-defined]
        assert gain["verdict"] == "not significant"


def gain_of(low: float, value: float, high: float, *, noise: float | None, higher: bool = True) -> Gain:
    interval = Interval(value=value, low=low, high=high, level=0.95, count=4, method="m")
    sides = {"new": value, "current": 1.0}
    return Gain(what="w", unit="u", higher=higher, interval=interval, n=9, noise=noise, repeats=1, **sides)


@pytest.mark.parametrize(
    ("interval", "noise", "higher", "verdict"),
    [
        ((1.1, 1.2, 1.3), 0.1, True, "gain"),
        ((1.1, 1.2, 1.3), None, True, "gain"),
        ((1.1, 1.2, 1.3), 0.25, True, "not significant"),
        ((0.9, 1.2, 1.5), 0.0, True, "not significant"),
        ((1.1, 1.2, 1.3), 0.1, False, "loss"),
        ((0.7, 0.8, 0.9), 0.2, False, "gain"),
        # 1 / 0.8 is 25 % more
        ((0.7, 0.8, 0.9), 0.26, False, "not significant"),
        ((0.7, 0.8, 0.9), 0.1, True, "loss"),
    ],
)
def test_a_gain_needs_an_interval_without_1_and_more_than_the_noise(
    interval: tuple[float, float, float], noise: float | None, higher: bool, verdict: str
) -> None:
    assert gain_of(*interval, noise=noise, higher=higher).verdict == verdict


@given(value=st.floats(0.2, 5), below=st.floats(0.01, 1), above=st.floats(1, 10), higher=st.booleans())
def test_an_interval_that_holds_1_is_never_a_gain_or_a_loss(
    value: float, below: float, above: float, higher: bool
) -> None:
    gain = gain_of(value * below, value, value * above, noise=None, higher=higher)
    assert (gain.verdict == "not significant") == (value * below <= 1 <= value * above)


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
    pooled = {
        candidate: [
            us
            for trial in tuning.trials
            if (trial.candidate, trial.load) == (candidate, tuning.load)
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
    kept = verdict(evidence(study("closed:16", same=True)))
    assert not [sentence for sentence in kept.sentences if "make serve" in sentence]


def test_windows_that_ended_when_sure_need_more_requests() -> None:
    # none late of 500: 0.99 ^ 500 = 0.007 is sure of a planned window, but not of one that was watched (644)
    first = replace(study().trials[2], latencies_us=(1000.0,) * 500, requests=500, **PASSING)  # type: ignore[arg-type]
    for early, sure in ((False, True), (True, None)):
        records = evidence(replace(study(), trials=(replace(first, early=early),)))
        assert records.of(CHOSEN)
        assert passes(records, CHOSEN) is sure


def test_an_unfinished_study_has_no_verdict() -> None:
    tuning = replace(study(), chosen=None, after_pbtxt="", limit="", trials=study().trials[:5])
    assert verdict(evidence(tuning)).title.startswith("No verdict")


def test_the_current_configuration_can_be_the_best() -> None:
    section = verdict(evidence(replace(study(), chosen=DEFAULT)))
    assert section.title.startswith("Keep max 4, 0 ms, 1 instance: no better configuration")
    assert section.missing == ()


def test_the_sustained_rate_lies_below_the_lowest_that_fails() -> None:
    # final windows at 190, 304, 456, 608 and 836 requests per second; only the last one fails
    failed = {trial.load for trial in study().trials if trial.candidate == CHOSEN and trial.passed is False}
    assert failed == {"poisson:836"}
    assert sustained(evidence(study())).startswith(
        "Sustains 608 requests/s within the target (n = 700 requests), and fails at"
    )
    early = tuple(replace(trial, passed=False) if trial.load == "poisson:456" else trial for trial in study().trials)
    assert "Sustains 380 requests/s" in sustained(evidence(replace(study(), trials=early)))
    none = tuple(replace(trial, passed=None) for trial in study().trials)
    assert "No measured rate surely" in sustained(evidence(replace(study(), trials=none)))


def test_a_load_of_rising_rate_sustains_what_it_offered_on_the_mean() -> None:
    rising = replace(study().trials[2], load="ramp:100:400", offered_per_s=250.0, passed=True)
    sentence = sustained(evidence(replace(study(), load="ramp:100:400", trials=(rising,))))
    assert sentence.startswith("Sustains 250 requests/s")


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
    assert "throughput of the same configuration differed by 3" in noise(evidence(replace(tuning, trials=wild))).banner
    crowded = tuple(replace(trial, load_average=20.0) for trial in tuning.trials)
    assert "load average 20.0 on 2 cores" in noise(evidence(replace(tuning, trials=crowded))).banner
