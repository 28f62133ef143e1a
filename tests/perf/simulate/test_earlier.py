"""Earlier measurements: trials that are printed beside a prediction, and ramps that are not measured again."""

import contextlib
import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import ramp
from rich.console import Console
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.variant import read
from perf.measure import ramp_plan
from perf.measure.service_profile import Profile, ServiceTimes, load, write
from perf.measure.service_time_run import bar, profile
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget, Prediction, Study
from perf.records.traffic import Traffic
from perf.simulate.command import show
from perf.simulate.earlier import EarlierTrials, earlier_trials
from perf.simulate.simulated_run import PERCENTILES
from perf.simulate.uncertainty import Bounds, PredictedBounds
from triton_batching.terminal import Mistake

MODEL = "simulated_accelerator"
STUDY = Path("perf/studies/results/grid") / f"{MODEL}.closed-32.throughput.p99-55ms.json"
LOAD = Traffic.parse("closed:32")
CONFIG = read(MODEL, None)
RAMP = load(STUDY.parent / f"{MODEL}.default.b32.k1.json")

Profiling = Callable[[ModelConfig], Profile]


@pytest.fixture
def here(tmp_path: Path) -> Study:
    """A committed study in a folder of its own, with another kind of record."""
    study = Study.read(STUDY)
    study.write(tmp_path / STUDY.name)
    shutil.copy(STUDY.parent / f"{MODEL}.default.b32.k1.json", tmp_path)
    return study


def test_trials_of_the_same_load_are_found(here: Study, tmp_path: Path) -> None:
    (tmp_path / f"{MODEL}.old.json").write_text('{"kind": "study", "format": 0}')
    earlier = earlier_trials(tmp_path, CONFIG, LOAD, RAMP)
    assert set(earlier) == {trial.candidate for trial in here.trials}
    assert here.chosen is not None
    trials = [trial.throughput_rows_per_s for trial in here.trials if trial.candidate == here.chosen]
    medians = earlier[here.chosen]
    assert medians.count == len(trials)
    assert min(trials) <= medians.throughput_rows_per_s <= max(trials)
    assert 30 < medians.p99_ms < 55


def test_trials_of_another_load_or_model_are_not_found(here: Study, tmp_path: Path) -> None:
    assert earlier_trials(tmp_path, CONFIG, Traffic.parse("closed:16"), RAMP) == {}
    assert earlier_trials(tmp_path, CONFIG, replace(LOAD, rows=2), RAMP) == {}
    assert earlier_trials(tmp_path, read("ranker", None), LOAD, RAMP) == {}
    other = sized(8)
    other.parameters["another"].string_value = "value"
    assert earlier_trials(tmp_path, other, LOAD, RAMP) == {}
    assert earlier_trials(tmp_path, sized(16), LOAD, RAMP)  # what is searched is no difference
    elsewhere = replace(RAMP, machine=replace(RAMP.machine, cpu="another"))
    for changed in (elsewhere, replace(RAMP, versions={}), replace(RAMP, model_sha256="another")):
        assert earlier_trials(tmp_path, CONFIG, LOAD, changed) == {}


def test_a_prediction_is_shown_beside_the_measurement(here: Study, tmp_path: Path) -> None:
    assert here.chosen is not None
    measured = earlier_trials(tmp_path, CONFIG, LOAD, RAMP)
    figures = measured[here.chosen]
    predictions = [prediction for prediction in here.predictions if prediction.candidate == here.chosen]
    assert f"{figures.throughput_rows_per_s:,.1f} rows/s, p99 {figures.p99_ms:.1f} ms" in shown(predictions, measured)
    assert "none of these was measured" in shown(predictions, {})
    assert "90% of measurements │ 1.0 to 2.0" in shown(predictions, {})


def shown(predictions: Sequence[Prediction], measured: Mapping[Candidate, EarlierTrials]) -> str:
    text = io.StringIO()
    bound = Bounds(low=1.0, high=2.0)
    intervals = [
        PredictedBounds(throughput_rows_per_s=bound, percentiles_ms=dict.fromkeys(PERCENTILES, bound))
        for _ in predictions
    ]
    show(predictions, intervals, measured, LatencyTarget(latency_ms=55), MODEL, Console(file=text, width=200))
    return " ".join(text.getvalue().split())


def sized(rows: int) -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(read(MODEL, None))
    config.max_batch_size = rows
    return config


@pytest.fixture
def profiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiling:
    """Profiles one instance from a folder with a ramp of 32 rows and 17 requests; one that it lacks is an error."""

    def measure(planned: ServiceTimes, *_: object, **__: object) -> ServiceTimes:
        raise LookupError(planned.file_name)

    monkeypatch.setattr("perf.measure.service_time_run.measure", measure)
    made = ramp()
    plan = ramp_plan.plan(sized(32), config_name="large", instances=1)
    write(replace(plan, levels=made.levels, sizes=made.sizes, noise=made.noise, alone_us=made.alone_us), tmp_path)
    return lambda config: profile(config, [(1, None)], tmp_path, config_name="tuned")


def test_a_ramp_of_a_larger_maximum_is_used_again(profiling: Profiling) -> None:
    (profiled,) = profiling(sized(8)).ramps
    assert (profiled.max_batch_size, profiled.config_name) == (32, "large")


@pytest.mark.parametrize("rows", [16, 64])
def test_a_ramp_with_fewer_requests_is_not_used_again(profiling: Profiling, rows: int) -> None:
    with pytest.raises(LookupError, match=f"tuned.b{rows}.k1"):
        profiling(sized(rows))


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize(("rows", "lines"), [(8, 0), (16, 1)])
def test_only_what_is_measured_is_announced_in_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int, lines: int
) -> None:
    with bar(Console(file=io.StringIO()), 3) as progress, contextlib.suppress(LookupError):
        profile(sized(rows), [(1, None)], tmp_path, progress=progress)
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == lines
    assert all("measuring its service times with 1 instance(s), 20 to 60 s" in error for error in errors)


def test_a_ramp_of_another_configuration_is_not_used_again(profiling: Profiling) -> None:
    other = sized(8)
    other.parameters["another"].string_value = "value"
    with pytest.raises(LookupError):
        profiling(other)


def test_a_batch_policy_is_refused_before_anything_is_measured(profiling: Profiling) -> None:
    config = sized(8)
    config.parameters["batch_policy"].string_value = "aimd"
    with pytest.raises(Mistake, match=r'batch_policy "aimd": Triton counts'):
        profiling(config)
