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
from perf.stats.bootstrap import Interval

PASSING = {"passed": True, "late": 0}


def evidence(of: Study) -> Evidence:
    return Evidence(study=of, name="study")


def both_pass(of: Study) -> Study:
    """The same study with nobody late, so that only speed tells the configurations apart."""
    trials = (
        replace(one, **PASSING, latencies_us=tuple(min(us, 39e3) for us in one.latencies_us))  # type: ignore[arg-type]
        for one in of.trials
    )
    return replace(of, trials=tuple(trials))


def test_the_chosen_one_is_recommended_because_the_current_one_misses_the_target() -> None:
    found = verdict(evidence(study()))
    assert found.title == (
        f"Use {CHOSEN}, because it meets 99 % of requests within 40 ms and the current configuration does not"
    )
    assert "0 of 3,500 requests late (0.0 %, allowed 1.0 %) in 5 windows: the target is met" in found.sentences[0]
    assert found.data["passes"] is True
    assert found.data["current_passes"] is False


def test_a_gain_in_a_closed_loop_comes_with_interval_rounds_requests_and_noise() -> None:
    of = both_pass(study("closed:16"))
    first, second = gains(evidence(of))
    assert (first.what, second.what) == ("throughput", "p99")
    ours, theirs = (
        [one.throughput_rows_per_s for one in of.trials if (one.stage, one.candidate) == (AGAINST, candidate)]
        for candidate in (CHOSEN, DEFAULT)
    )
    again = [one.throughput_rows_per_s for one in of.trials if one.stage == NOISE]
    # the default's measurements in their order: against, noise, against, noise ...
    order = [value for pair in zip(theirs, again, strict=True) for value in pair]
    ratios = [math.log(a / b) for a, b in zip(ours, order, strict=False)]
    assert first.interval.value == pytest.approx(math.exp(sum(ratios) / 4))
    assert first.verdict == "gain"
    assert verdict(evidence(of)).title.startswith(f"Use {CHOSEN}, because its throughput is 6")
    assert "n = 4 interleaved rounds, 5,600 requests" in str(first)
    assert "the A/A noise is up to" in str(first)


@pytest.mark.parametrize("load", ["poisson:380", "closed:16"])
@pytest.mark.parametrize("passing", [True, False])
def test_what_is_not_significant_never_reads_as_a_win(load: str, passing: bool) -> None:
    of = study(load, same=True)
    of = both_pass(of) if passing else of
    found = verdict(evidence(of))
    assert found.title.startswith("Not significant: " if passing else "Not verified: ")
    assert "Use" not in found.title
    assert not any(sentence.rstrip(".").endswith(": gain") for sentence in found.sentences)
    for one in found.data["gains"]:  # type: ignore[attr-defined]
        assert one["verdict"] == "not significant"


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
    one = gain_of(value * below, value, value * above, noise=None, higher=higher)
    assert (one.verdict == "not significant") == (value * below <= 1 <= value * above)


def test_a_loss_keeps_the_current_configuration() -> None:
    of = both_pass(study("closed:16"))
    slow = tuple(
        replace(one, throughput_rows_per_s=one.throughput_rows_per_s / 3) if one.candidate == CHOSEN else one
        for one in of.trials
    )
    found = verdict(evidence(replace(of, trials=slow)))
    assert found.title.startswith(f"Keep {DEFAULT}: {CHOSEN} is worse, its throughput is 4")


def test_an_infeasible_study_names_the_closest_and_recommends_nothing() -> None:
    of = replace(study(), chosen=None, after_pbtxt="")
    found = verdict(evidence(of))
    assert found.title.startswith("No measured configuration meets 99 % of requests within 40 ms under poisson:380")
    pooled = {
        candidate: [
            us for one in of.trials if (one.candidate, one.load) == (candidate, of.load) for us in one.latencies_us
        ]
        for candidate in {one.candidate for one in of.trials}
    }
    tails = {one: float(np.quantile(us, 0.99, method="inverted_cdf")) / 1e3 for one, us in pooled.items()}
    nearest = min(tails, key=lambda one: tails[one])
    assert f"the closest is {nearest} with p99 {tails[nearest]:.1f} ms" in found.title
    assert found.sentences[-1].startswith(
        f"Targets that can be met: the lowest measured p99 is {tails[nearest]:.1f} ms"
    )
    assert "the lowest simulated p99 is 21.8 ms (max 16, 0 ms, 1 instance)" in found.sentences[-1]
    assert "stays" in difference(evidence(of)).missing[0]


def test_where_every_request_is_late_the_closest_has_the_lowest_percentile() -> None:
    of = impossible()
    assert {one.late for one in of.trials} == {700}
    tails = {one.candidate: float(np.quantile(one.latencies_us, 0.99, method="inverted_cdf")) for one in of.trials}
    nearest = min(tails, key=lambda one: tails[one])
    assert nearest != of.trials[0].candidate
    shown = evidence(of)
    assert shown.shown == nearest
    assert f"the closest is {nearest} with p99" in verdict(shown).title
    assert f"({nearest})" in verdict(shown).sentences[-1]


def test_the_page_has_one_throughput_of_all_windows_and_the_next_step() -> None:
    of = replace(both_pass(study("closed:16")), after_pbtxt="max_batch_size: 16")
    trials = evidence(of).of(CHOSEN)
    mean = sum(one.requests for one in trials) / sum(one.seconds for one in trials)
    found = verdict(evidence(of))
    assert any(f"Throughput: {mean:.0f} rows/s in all windows together" in one for one in found.sentences)
    assert found.grids[0].rows[0][2] == f"{mean:.0f}"
    assert "To serve it (until the next tuning replaces it): make serve MODEL=ranker CONFIG=tuned." in found.sentences
    kept = verdict(evidence(study("closed:16", same=True)))
    assert not [one for one in kept.sentences if "make serve" in one]


def test_windows_that_ended_when_sure_need_more_requests() -> None:
    # none late of 500: 0.99 ^ 500 = 0.007 is sure of a planned window, but not of one that was watched (644)
    first = replace(study().trials[2], latencies_us=(1000.0,) * 500, requests=500, **PASSING)  # type: ignore[arg-type]
    for early, sure in ((False, True), (True, None)):
        of = evidence(replace(study(), trials=(replace(first, early=early),)))
        assert of.of(CHOSEN)
        assert passes(of, CHOSEN) is sure


def test_an_unfinished_study_has_no_verdict() -> None:
    of = replace(study(), chosen=None, after_pbtxt="", limit="", trials=study().trials[:5])
    assert verdict(evidence(of)).title.startswith("No verdict")


def test_the_current_configuration_can_be_the_best() -> None:
    found = verdict(evidence(replace(study(), chosen=DEFAULT)))
    assert found.title.startswith("Keep max 4, 0 ms, 1 instance: no better configuration")
    assert found.missing == ()


def test_the_sustained_rate_lies_below_the_lowest_that_fails() -> None:
    # final windows at 190, 304, 456, 608 and 836 requests per second; only the last one fails
    failed = {one.load for one in study().trials if one.candidate == CHOSEN and one.passed is False}
    assert failed == {"poisson:836"}
    assert sustained(evidence(study())).startswith(
        "Sustains 608 requests/s within the target (n = 700 requests), and fails at"
    )
    early = tuple(replace(one, passed=False) if one.load == "poisson:456" else one for one in study().trials)
    assert "Sustains 380 requests/s" in sustained(evidence(replace(study(), trials=early)))
    none = tuple(replace(one, passed=None) for one in study().trials)
    assert "No measured rate surely" in sustained(evidence(replace(study(), trials=none)))


def test_a_load_of_rising_rate_sustains_what_it_offered_on_the_mean() -> None:
    rising = replace(study().trials[2], load="ramp:100:400", offered_per_s=250.0, passed=True)
    found = sustained(evidence(replace(study(), load="ramp:100:400", trials=(rising,))))
    assert found.startswith("Sustains 250 requests/s")


def test_a_study_that_was_interrupted_says_nothing_of_other_targets() -> None:
    found = verdict(evidence(replace(study(), chosen=None, limit="")))
    assert found.title.startswith("No verdict")
    assert not any("Targets that can be met" in sentence for sentence in found.sentences)


def test_the_difference_shows_delay_sizes_and_instances_and_the_whole_file() -> None:
    found = difference(evidence(study()))
    assert found.sentences == ("2 of 6 values change.",)
    assert found.grids[0].rows[2] == ("max_queue_delay_microseconds", "0 µs", "1,000 µs", "changed")
    changed, whole = found.listings
    kinds = {line: kind for kind, line in changed.lines}
    assert kinds["-max_batch_size: 4"] == "removed"
    assert kinds["+  max_queue_delay_microseconds: 1000"] == "added"
    assert kinds["+++ tuned"] == kinds["@@ -1,5 +1,9 @@"] == ""
    assert whole.text == study().after_pbtxt


def test_a_noisy_machine_has_a_banner_and_a_calm_one_has_none() -> None:
    of = both_pass(study("closed:16"))
    assert noise(evidence(of)).banner == ""
    wild = tuple(
        replace(one, throughput_rows_per_s=one.throughput_rows_per_s * 1.3) if one.stage == NOISE else one
        for one in of.trials
    )
    assert "throughput of the same configuration differed by 3" in noise(evidence(replace(of, trials=wild))).banner
    crowded = tuple(replace(one, load_average=20.0) for one in of.trials)
    assert "load average 20.0 on 2 cores" in noise(evidence(replace(of, trials=crowded))).banner
