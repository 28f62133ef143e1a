"""A study that chose nothing: the closest configuration, and what keeps it from being chosen."""

from dataclasses import replace

import numpy as np
from studies import CHOSEN, impossible, study

from perf.records.candidate import Candidate
from perf.records.resource_use import Limits, ResourceUse
from perf.records.study import AGAINST, HALVING, Study
from perf.report.study.difference import difference
from perf.report.study.verdict import verdict
from tests.perf.report.study.test_verdict import both_pass, evidence


def test_an_infeasible_study_names_the_closest_and_recommends_nothing() -> None:
    tuning = replace(study(), chosen=None, after_pbtxt="")
    section = verdict(evidence(tuning))
    assert section.title.startswith("p99 <= 40 ms: ")
    assert section.title.endswith(", under poisson:380")
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
    assert f"(p99 {tails[nearest]:.1f} ms, 95 % interval " in section.title
    assert f" by the closest configuration, {nearest}, " in section.title
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
    assert verdict(shown).title.startswith("p99 <= 2 ms: missed (p99 ")
    assert f"by the closest configuration, {nearest}," in verdict(shown).title
    assert f"({nearest})" in verdict(shown).sentences[-1]


def test_a_study_that_was_interrupted_says_nothing_of_other_targets() -> None:
    section = verdict(evidence(replace(study(), chosen=None, limit="")))
    assert section.title.startswith("No verdict")
    assert not any("Targets that can be met" in sentence for sentence in section.sentences)


def test_an_unfinished_study_has_no_verdict() -> None:
    tuning = replace(study(), chosen=None, after_pbtxt="", limit="", trials=study().trials[:5])
    assert verdict(evidence(tuning)).title.startswith("No verdict")


def limited(limits: Limits, used_mib: dict[Candidate, float]) -> Study:
    """A study in which every configuration meets the target, and none was chosen."""
    tuning = both_pass(study("closed:16"))
    trials = (
        replace(trial, used=ResourceUse(server_memory_mib=used_mib.get(trial.candidate, 420.0)))
        for trial in tuning.trials
    )
    return replace(tuning, chosen=None, after_pbtxt="", trials=tuple(trials), limits=limits)


def test_a_limit_that_refused_everything_is_the_reason() -> None:
    """The target is met, so no other target is proposed."""
    section = verdict(evidence(limited(Limits(server_memory_mib=50), {})))
    assert section.title.startswith("p99 <= 40 ms: not proved (p99 25.0 ms, ")
    assert section.title.endswith(
        ", which used 420.0 MiB of memory (--memory-mib 50), under closed:16 with --memory-mib 50"
    )
    assert not any("Targets that can be met" in sentence for sentence in section.sentences)


def test_what_is_within_the_limits_is_closer_than_what_is_faster() -> None:
    tuning = limited(Limits(server_memory_mib=600), {CHOSEN: 900.0})
    slow = tuple(
        trial
        if trial.candidate == CHOSEN
        else replace(trial, latencies_us=tuple(us + 50e3 for us in trial.latencies_us))
        for trial in tuning.trials
    )
    shown = evidence(replace(tuning, trials=slow))
    assert shown.shown != CHOSEN
    section = verdict(shown)
    assert f" by the closest configuration, {shown.shown}, " in section.title
    (targets,) = [sentence for sentence in section.sentences if sentence.startswith("Targets that can be met")]
    assert str(CHOSEN) not in targets
    assert "simulated" not in targets
    assert difference(shown).missing[0].startswith("No configuration meets the target within the limits")
