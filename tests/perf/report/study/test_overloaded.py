"""A page on a current configuration that answered nothing."""

import math
import re
import warnings
from dataclasses import replace

from studies import CHOSEN, DEFAULT, study

from perf.report.study.verdict import passes, verdict
from tests.perf.report.study.test_verdict import evidence


def test_an_overloaded_current_configuration_has_no_ratio_to_nothing() -> None:
    tuning = study()
    trials = tuple(
        replace(trial, throughput_rows_per_s=0.0, late=trial.requests, latencies_us=(math.inf,) * trial.requests)
        if trial.candidate == DEFAULT
        else trial
        for trial in tuning.trials
    )
    overloaded = evidence(replace(tuning, trials=trials))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        section = verdict(overloaded)
    assert passes(overloaded, DEFAULT) is False
    assert section.title.endswith(f": use {CHOSEN}")
    assert section.sentences[0].startswith("Because the current configuration does not answer 99 % of")
    said = " ".join((section.title, *section.sentences, *map(" ".join, section.grids[0].rows)))
    assert not re.search(r"\bnan\b|x 0\.000", said)
    assert section.grids[0].rows[1][2] == "0.00"
