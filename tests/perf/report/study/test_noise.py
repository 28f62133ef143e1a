"""What a page says of the noise of the machine."""

from dataclasses import replace

from studies import study

from perf.records.study import NOISE
from perf.report.study.noise import noise
from tests.perf.report.study.test_verdict import both_pass, evidence


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
