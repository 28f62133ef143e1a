"""The judgement on a tuning of a blind model, on the simulated bench."""

from dataclasses import replace
from pathlib import Path

import pytest
from simulated_bench import SimulatedBench, accelerator

from perf.records import file
from perf.records.candidate import Candidate
from perf.records.study import Study, Trial
from perf.records.traffic import Traffic
from perf.stats import rounds
from perf.stats.latency_target import LatencyTarget
from perf.studies.experiment import origin
from perf.studies.grid import judgement
from perf.studies.grid.blind import BlindTuning, lines, main, measured_again, printed
from perf.studies.grid.judgement import CURRENT, LOOKS, TUNED, GridJudgement
from perf.studies.grid.record import Grid

RESULTS = Path("perf/studies/results/grid")
STUDY = Study.read(RESULTS / "simulated_accelerator.closed-32.throughput.p99-55ms.json")


class NoisyBench(SimulatedBench):
    """Rates that differ a little by stage and round: rounds that are exactly alike have no interval."""

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        trial = super().measure(candidate, traffic, stage=stage, round=round, seconds=seconds)
        noise = 1e-6 * len(stage) * round**0.5
        return replace(trial, throughput_rows_per_s=trial.throughput_rows_per_s * (1 - noise))


class StoppingBench(NoisyBench):
    """A bench that is stopped by Ctrl-C before a trial."""

    stop_before = 7

    def measure(self, candidate: Candidate, traffic: Traffic, *, stage: str, round: int, seconds: float) -> Trial:
        if len(self.measured) == self.stop_before:
            raise KeyboardInterrupt
        return super().measure(candidate, traffic, stage=stage, round=round, seconds=seconds)


def judged(folder: Path, bench: SimulatedBench) -> GridJudgement:
    grid = file.read(RESULTS / "simulated_accelerator.closed-32.json", Grid)
    study = replace(STUDY, profiles=())
    return judgement.judge(study, grid, folder, bench, current=True, progress=lambda _: None)


def bench() -> SimulatedBench:
    return NoisyBench(service=accelerator, target=LatencyTarget(latency_ms=100))


def result(folder: Path, **changes: object) -> BlindTuning:
    whole = judged(folder, bench())
    again = measured_again(STUDY, whole)
    assert again is not None
    known = BlindTuning(
        **origin(("python",), "2026-11-23T00:00:00+00:00"),
        model=STUDY.model,
        seed=1,
        load=STUDY.load,
        p99_ms=55.0,
        feasible=9,
        measured=36,
        judged=whole,
        printed=again,
        again=again,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def test_the_current_configuration_is_measured_in_the_same_rounds(tmp_path: Path) -> None:
    whole = judged(tmp_path, bench())
    tuned, current = ([trial.throughput_rows_per_s for trial in whole.of(stage)] for stage in (TUNED, CURRENT))
    assert len(tuned) == len(current) == LOOKS[0]
    assert measured_again(STUDY, whole) == rounds.paired(tuned, current)
    assert {trial.candidate for trial in whole.of(CURRENT)} == {STUDY.default}
    # The order of a round is reversed in the next one.
    stages = [[point.stage for point in whole.points if point.round == number] for number in (1, 2)]
    assert stages[0] == stages[1][::-1]


def test_a_stopped_judgement_goes_on_after_its_last_round(tmp_path: Path) -> None:
    stopping = StoppingBench(service=accelerator, target=LatencyTarget(latency_ms=100))
    with pytest.raises(KeyboardInterrupt):
        judged(tmp_path, stopping)
    again = bench()
    whole = judged(tmp_path, again)
    assert len(whole.of(TUNED)) == LOOKS[0]
    # Two rounds of three trials were on record.
    assert len(again.measured) == 3 * (LOOKS[0] - 2)
    (tmp_path / "other").mkdir()
    assert whole == judged(tmp_path / "other", bench())


def test_the_printed_gain_is_that_of_the_trials_after_the_choice() -> None:
    gain = printed(STUDY)
    assert gain is not None
    assert gain.value == pytest.approx(3.0, abs=0.005)
    assert printed(replace(STUDY, chosen=STUDY.default)) is None
    assert printed(replace(STUDY, chosen=None)) is None


def test_all_gates_must_hold(tmp_path: Path) -> None:
    good = result(tmp_path)
    assert good.judged is not None
    assert good.passed == good.judged.passed
    assert good.again is not None
    far = replace(good.again, value=2 * good.again.high)
    missed = replace(good, again=far)
    assert not missed.held
    assert not missed.passed
    assert "does NOT hold" in lines(missed)[-1]
    kept = replace(good, printed=None, again=None)
    assert kept.held
    none = replace(good, judged=None, printed=None, again=None)
    assert not none.passed
    assert lines(none)[1] == "  the tuner chose nothing, but 9 of the grid's 36 configurations met the target once"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = result(tmp_path)
    file.write(whole, tmp_path / "blind.json")
    assert file.read(tmp_path / "blind.json", BlindTuning) == whole


def test_an_unknown_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resnet", "--results", str(tmp_path)]) == 2
    assert "resnet: no blind model. Name one of blind_steps" in " ".join(capsys.readouterr().err.split())
