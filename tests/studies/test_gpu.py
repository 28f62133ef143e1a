"""The experiment for a GPU: its small form on the CPU, its budget, and that the form for a GPU names what exists."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from simulated_bench import SimulatedBench, accelerator
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from export.repository import config_file, model_folder, read_config, variants
from perf.records import file
from perf.records.study import Study
from perf.studies.archive import ROOT
from perf.studies.experiment import origin
from perf.studies.gpu import __main__ as program
from perf.studies.gpu import step
from perf.studies.gpu.answers import check_kind
from perf.studies.gpu.extent import ENCODER, EXTENTS, FULL, SMALL, Extent
from perf.studies.gpu.record import CPU, CUDA, NO_GPU, Finding, StepRecord, difference, last_line
from perf.studies.gpu.step import STEPS, record_of
from perf.studies.gpu.throughput import CONFIG_NAMES, PUBLISHED
from perf.studies.gpu.tuner import NOT_TUNED, compared
from perf.studies.grid.record import Grid
from perf.studies.memory_estimate.zoo import ZOO
from perf.studies.padded import encoders
from perf.studies.padded.record import MIXES as PADDED_MIXES
from perf.studies.padded.served import repository
from perf.studies.ragged.table import MIXES, ROUTES
from tests.perf.test_defaults import IGNORED
from tests.studies.test_tune_grid import JUDGED_STUDY
from tests.studies.test_tune_grid import RESULTS as GRIDS
from triton_batching.machine import Machine
from triton_batching.terminal import Failure, Mistake


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run of the small form."""
    results = tmp_path_factory.mktemp("gpu")
    code = program.main(["--device", CPU, "--budget-s", "900", "--results", str(results)])
    logs = "\n".join(path.read_text() for path in results.rglob("*.log"))
    assert code == 0, logs
    return results


def of(results: Path, name: str) -> tuple[Finding, ...]:
    return file.read(record_of(results, CPU, name), StepRecord).findings


@pytest.mark.server
def test_answers_and_memory_are_right_in_the_small_form(finished: Path) -> None:
    assert [finding.what.partition(":")[0] for finding in of(finished, "answers")] == list(SMALL.answers)
    assert all(0 <= (finding.value or 0) <= 1e-4 for finding in of(finished, "answers"))
    counters, grown, cuda = of(finished, "arena")
    assert (counters.value, grown.unit, cuda.note) == (0, "MiB", NO_GPU)


@pytest.mark.server
def test_what_needs_a_gpu_is_said_not_to_have_run(finished: Path) -> None:
    skipped = [finding.what for name in STEPS for finding in of(finished, name) if finding.note == NO_GPU]
    assert len(skipped) == 3
    assert all("GPU" in what or "tensorrt" in what or "CUDA" in what for what in skipped)
    assert all(finding.value is None for name in STEPS for finding in of(finished, name) if finding.note == NO_GPU)


@pytest.mark.server
def test_each_step_measures_what_it_should(finished: Path) -> None:
    batched = of(finished, "batching")
    assert len(batched) == len(SMALL.clients) * len(CONFIG_NAMES)
    assert [finding.unit for finding in batched] == ["rows/s", "x", "x"] * len(SMALL.clients)
    original, half, *tensorrt = of(finished, "precisions")
    assert (original.unit, half.what, half.unit) == ("rows/s", f"{ENCODER}_fp16, over FP32", "x")
    assert [finding.note for finding in tensorrt] == [NO_GPU, NO_GPU]
    padded, *routes = of(finished, "lengths")
    assert 0 <= (padded.value or 0) <= 1e-4
    assert [SMALL.ragged in finding.what for finding in routes] == [False, False, True]
    together, *factors = of(finished, "pair")
    assert together.unit == "x"
    assert [finding.value is not None and finding.value >= 1 for finding in factors] == [True, True]
    best, tuned = of(finished, "tuner")
    assert (best.unit, tuned.note) == ("rows/s", NOT_TUNED)


@pytest.mark.server
def test_a_finished_run_repeats_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert program.main(["--device", CPU, "--budget-s", "0", "--results", str(finished)]) == 0
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before
    shown = capsys.readouterr().out
    assert all(name in shown for name in STEPS)
    assert NO_GPU in shown


def test_without_a_budget_nothing_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--device", CPU, "--budget-s", "0", "--results", str(tmp_path)]) == 3
    assert f"the budget ended before: {', '.join(STEPS)}" in capsys.readouterr().out
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_step_that_takes_too_long_is_stopped_and_one_that_fails_says_why(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    assert program.child("answers", CPU, tmp_path, log, 0.01) is None
    assert not record_of(tmp_path, CPU, "answers").exists()
    assert program.child("answers", "tpu", tmp_path, log, 60) == 2
    assert last_line(log.read_text()).startswith("--device tpu: not a choice. Give one of ")
    assert program.environment(CPU)["CUDA_VISIBLE_DEVICES"] == ""


def finding(**values: object) -> Finding:
    return Finding(what="x", **values)  # type: ignore[arg-type]


def test_a_limit_is_exceeded_by_more_and_by_no_number() -> None:
    assert finding(value=1.0, limit=1.0).held
    assert not finding(value=1.1, limit=1.0).held
    assert not finding(limit=1.0).held
    assert finding(note=NO_GPU).held
    assert difference("x", math.nan, 1.0).value == math.inf
    assert finding(value=1.1, limit=1.0).cells == ("1.1", "", "OVER THE limit 1")


def test_a_record_of_another_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = origin(("test",))
    record = StepRecord(**made, step="answers", device=CUDA, seconds=1.0, findings=(finding(value=2.0, limit=1.0),))
    path = record_of(tmp_path, CPU, "answers")
    file.write(record, path)
    assert program.main(["--device", CPU, "--budget-s", "0", "--results", str(tmp_path)]) == 2
    assert "another device" in capsys.readouterr().err
    file.write(record, record_of(tmp_path / "cuda", CUDA, "answers"))
    # A finding over its limit is a failure, even if other steps are missing.
    assert program.main(["--device", CUDA, "--budget-s", "0", "--results", str(tmp_path / "cuda")]) == 1
    assert "OVER THE limit 1" in capsys.readouterr().out


def test_a_gpu_that_onnxruntime_cannot_use_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine.this()
    for gpu in (None, "NVIDIA H100"):
        machine = Machine(cpu=here.cpu, cores=1, memory_bytes=1, system=here.system, gpu=gpu)
        monkeypatch.setattr(Machine, "this", lambda machine=machine: machine)
        if gpu is None:
            assert program.this_device() == CPU
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(Mistake, match=r"has NVIDIA H100, .*make setup RUNTIME=gpu, or .*--device cpu"):
        program.this_device()
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    assert program.this_device() == CUDA


def test_a_model_on_another_device_proves_nothing() -> None:
    config = text_format.Parse('name: "m" instance_group { kind: KIND_CPU count: 2 }', ModelConfig())
    check_kind(config, CPU)
    with pytest.raises(Failure, match="m: its instances are of KIND_CPU, so it does not run on cuda"):
        check_kind(config, CUDA)


@pytest.mark.parametrize("extent", EXTENTS.values(), ids=EXTENTS)
def test_an_extent_names_what_exists(extent: Extent) -> None:
    shipped = {*extent.answers, *extent.precisions, *extent.pair, extent.recogniser, extent.ragged}
    for name in {*shipped, extent.tuned} - {ENCODER}:
        folder = model_folder(name)
        assert set(CONFIG_NAMES) <= set(variants(folder))
        # Triton puts an instance without a kind on a GPU if there is one.
        groups = read_config(config_file(folder, "dynamic")).instance_group
        allowed = {ModelInstanceGroup.KIND_AUTO, *([ModelInstanceGroup.KIND_CPU] if extent.device == CPU else [])}
        assert {group.kind for group in groups} <= allowed
    assert extent.padded in encoders.KINDS
    assert set(extent.lengths) <= {mix.name for mix in MIXES[extent.ragged]}
    assert set(extent.padded_lengths) <= {mix.name for mix in PADDED_MIXES}
    assert set(extent.routes) <= {route.name for route in ROUTES}
    assert all(name in ZOO or config_file(model_folder(name), None).is_file() for name in extent.memory)
    assert max(extent.sizes) <= read_config(config_file(model_folder(extent.tuned), None)).max_batch_size


def test_the_form_for_a_gpu_measures_what_was_published() -> None:
    for model, config_name, clients in PUBLISHED:
        assert model == FULL.recogniser
        assert config_name in CONFIG_NAMES
        assert clients in FULL.clients


def test_the_tuners_choice_is_measured_for_as_many_rounds_as_the_extent_says(tmp_path: Path) -> None:
    study = replace(Study.read(JUDGED_STUDY), profiles=())
    grid = file.read(GRIDS / "simulated_accelerator.closed-32.json", Grid)
    bench = SimulatedBench(service=accelerator, target=study.sla)
    extent = replace(FULL, looks=(2,), trial_s=0.5)
    said = compared("choice", study, grid, tmp_path, bench, extent, lambda text, done: None)
    assert {(stage, number) for _, stage, number, *_ in bench.measured} >= {("tuned", 1), ("tuned", 2)}
    assert said.unit == "x"


def test_the_padded_encoder_runs_where_it_is_told(tmp_path: Path) -> None:
    models = repository(tmp_path, "blind", 1, FULL.kind)
    kinds = {
        group.kind for folder in models.iterdir() for group in read_config(config_file(folder, None)).instance_group
    }
    assert kinds == {ModelInstanceGroup.KIND_GPU}


def test_one_page_says_what_has_never_run_on_a_gpu() -> None:
    says = re.compile(r"\b(never|not)\s+(been\s+|yet\s+)*(run|measured)\s+on\s+(a\s+GPU|one)\b")
    pages = [page.relative_to(ROOT) for page in ROOT.rglob("*.md")]
    own = [page for page in pages if not page.parts[0].startswith((".", "build"))]
    assert [page for page in own if says.search((ROOT / page).read_text())] == [Path("serve/GPU.md")]


def test_the_default_folder_of_records_is_ignored_by_git() -> None:
    assert any(step.RESULTS.is_relative_to(ignored) for ignored in IGNORED)
