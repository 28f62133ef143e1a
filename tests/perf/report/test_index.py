"""The index: what it says of the records of some places, what is stale, and of files that are no records."""

import errno
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from other_user import as_nobody, needs_root
from studies import study

from export.graph.recipe import digest
from perf.records import file, round_record
from perf.records.batch_timeline import BatchTimeline
from perf.records.measurement import Measurement, write
from perf.records.offered_load import Load
from perf.records.round_record import TrialKey
from perf.report.__main__ import main
from perf.report.index import index
from perf.report.index.present import Fingerprint, Present
from perf.report.section import Link, Section
from perf.stats.latency_target import LatencyTarget
from tests.perf.load.test_stages import recorded, result, timings
from tests.perf.report.sweep.test_summary import MACHINE, record
from tests.perf.report.sweep.test_timeline import ALONE
from triton_batching.machine import Machine, versions

CONFIG = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
COLUMNS = ("model", "what", "verdict", "stale", "measured (UTC)")


def filled(folder: Path) -> list[Path]:
    """A run of the load generator on this machine: ten requests of 53 ms."""
    run = replace(recorded(result(timings(every_ms=53), Load(workers=1), 530)), machine=Machine.this())
    return [run.write(folder)]


def measured(repository: Path) -> Measurement:
    """A measurement of the repository's model as it is, on this machine."""
    made = record()
    point = replace(
        made.point,
        config_sha256=digest(repository / "m/configs/baseline.pbtxt"),
        model_sha256=digest(repository / "m/1/model.onnx"),
        machine=Machine.this(),
        versions=versions(),
    )
    return replace(made, point=point)


def compared(model: str, folder: Path, rounds: int = 2) -> None:
    """Rounds of one configuration of a model, as perf.compare.versus writes them."""
    for number in range(1, rounds + 1):
        key = TrialKey(
            model=model,
            name="dynamic",
            config=CONFIG,
            model_sha256="",
            load="closed:16",
            rows=1,
            sla=LatencyTarget(latency_ms=40),
            seconds=8.0,
            stage="against the default",
            round=number,
            machine=Machine.this(),
            versions={},
        )
        round_record.write(key, study().trials[0], folder)


def shown(places: list[Path], repository: Path) -> dict[str, Section]:
    """The sections of an index, by title."""
    found = index.find(places, Present(repository))
    return {section.title: section for section in index.sections(found, places[0])}


def stale(places: list[Path], repository: Path) -> str:
    """What the only sweep is stale by."""
    ((row,),) = (grid.rows for grid in shown(places, repository)["Sweeps"].grids)
    return dict(zip(COLUMNS, row, strict=True))["stale"]


def test_a_record_is_stale_once_its_files_or_versions_change(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    made = measured(repository)
    write(made, folder)
    assert stale([folder], repository) == "no"
    (repository / "m/1/model.onnx").write_text("another graph")
    assert stale([folder], repository) == "model.onnx has changed"
    (repository / "m/configs/baseline.pbtxt").write_text(CONFIG + "dynamic_batching { }\n")
    assert stale([folder], repository) == "baseline.pbtxt has changed; model.onnx has changed"
    (repository / "m/1/model.onnx").write_text("graph")
    (repository / "m/configs/baseline.pbtxt").write_text(CONFIG)
    write(replace(made, point=replace(made.point, versions={**versions(), "numpy": "0.9"})), folder)
    assert stale([folder], repository) == f"numpy was 0.9, is {versions()['numpy']}"
    write(made, folder)
    (repository / "m").rename(repository / "n")
    assert stale([folder], repository) == f"the model is not in {repository}"


def test_a_study_is_stale_once_its_configuration_changes(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    made = replace(study(), model="m", config_name="default", machine=Machine.this(), before_pbtxt=CONFIG)
    replace(made, model_sha256="", versions={}).write(folder / "study.json")
    ((row,),) = (grid.rows for grid in shown([folder], repository)["Studies of perf.tune"].grids)
    assert row[0] == "m"
    assert ": met (p99 " in row[2]
    assert (row[3], row[4]) == ("no", made.started_at[:16].replace("T", " "))
    (repository / "m/config.pbtxt").write_text(CONFIG + "dynamic_batching { }\n")
    ((row,),) = (grid.rows for grid in shown([folder], repository)["Studies of perf.tune"].grids)
    assert row[3] == "config.pbtxt has changed"


def test_a_model_file_that_cannot_be_read_is_stale(tmp_path: Path, repository: Path) -> None:
    """The memory of a process stands for a file of another user: for root too, reading it is an error."""
    folder = tmp_path / "records"
    write(measured(repository), folder)
    (repository / "m/1/model.onnx").unlink()
    (repository / "m/1/model.onnx").symlink_to("/proc/self/mem")
    (repository / "m/configs/baseline.pbtxt").write_text(CONFIG + "dynamic_batching { }\n")
    expected = f"baseline.pbtxt has changed; model.onnx cannot be read ({os.strerror(errno.EIO)})"
    assert stale([folder], repository) == expected


@needs_root
def test_a_repository_of_another_user_is_stale() -> None:
    with tempfile.TemporaryDirectory() as place:
        closed = Path(place) / "closed"
        (closed / "m").mkdir(parents=True)
        closed.chmod(0o700)
        Path(place).chmod(0o755)
        said = as_nobody(lambda: Present(closed).changes(Fingerprint(model="m", model_sha256="a"))[0])
    assert said == f"cannot be compared with {closed}: {closed}/m cannot be read (Permission denied)"


def test_kinds_are_apart_and_other_machines_are_named(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    filled(folder / "load")
    write(measured(repository), folder / "sweep")
    write(record("dynamic"), folder / "elsewhere")
    found = shown([folder], repository)
    assert list(found) == [
        "2 results of this machine, 0 of them stale",
        "Sweeps",
        "Runs of the load generator",
        "Records of other machines",
    ]
    ((row,),) = (grid.rows for grid in found["Records of other machines"].grids)
    assert row[1] == "dynamic"
    assert row[4] == f"{MACHINE}; here are other: cpu, memory bytes, system"
    ((row,),) = (grid.rows for grid in found["Runs of the load generator"].grids)
    # Ten requests of one row in 0.53 s.
    assert row[2].startswith("18.9 rows/s in 1 s, p99 53.0 ms (95 %:")


def test_the_memory_of_another_kernel_makes_no_other_machine(tmp_path: Path, repository: Path) -> None:
    made = measured(repository)
    here = Machine.this()
    machine = replace(here, memory_bytes=here.memory_bytes - 2**20)
    write(replace(made, point=replace(made.point, machine=machine)), tmp_path / "records")
    assert list(shown([tmp_path / "records"], repository)) == ["1 result of this machine, 0 of them stale", "Sweeps"]


def test_damaged_files_are_named_and_hide_nothing(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    write(measured(repository), folder)
    for name, text in (
        ("cut.json", '{"kind": "stu'),
        ("old.json", '{"kind": "record", "format": 0}'),
        ("wrong.json", '{"kind": "study", "format": 1, "model": 3}'),
        ("empty.json", ""),
        ("list.json", "[]"),
        ("study.figures.json", '{"kind": "study figures"}'),
    ):
        (folder / name).write_text(text)
    (folder / "dangling.json").symlink_to(folder / "nowhere")
    found = shown([folder], repository)
    rows = found["Files that cannot be read"].grids[0].rows
    named = {Path(path).name: text for path, text in rows}
    assert set(named) == {"cut.json", "old.json", "wrong.json", "empty.json", "dangling.json"}
    assert "no JSON" in named["cut.json"]
    assert "its format is 0" in named["old.json"]
    assert "cannot be read" in named["dangling.json"]
    assert len(found["Sweeps"].grids[0].rows) == 1
    verdict = found["1 result of this machine, 0 of them stale"]
    assert any("1 JSON file beside them" in each for each in verdict.sentences)


def test_what_is_no_file_or_has_no_name_is_named_and_ends_nothing(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a device without an end, and names that are not UTF-8."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / os.fsdecode(b"a\xfe.json")).write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "perf.report", "--index", str(tmp_path)],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 results, 4 files that cannot be read" in done.stdout
    page = (tmp_path / "index.html").read_text()
    assert page.count("a pipe or a device, not a file") == 2
    assert page.count("its name is not UTF-8") == 2
    assert f"{tmp_path}/\\xff/a\\xfe.json" in page


def test_records_that_must_not_share_a_table_say_so(tmp_path: Path, repository: Path) -> None:
    made = measured(repository)
    write(made, tmp_path / "records")
    write(replace(made, point=replace(made.point, repeat=2, config_sha256="another")), tmp_path / "records")
    ((row,),) = (grid.rows for grid in shown([tmp_path / "records"], repository)["Sweeps"].grids)
    assert "differ in their configuration file" in row[2]
    assert not isinstance(row[1], Link)


def test_a_timeline_alone_has_no_page(tmp_path: Path, repository: Path) -> None:
    here: BatchTimeline = replace(ALONE, machine=Machine.this())
    file.write(here, tmp_path / "records" / here.file_name)
    ((row,),) = (grid.rows for grid in shown([tmp_path / "records"], repository)["Sweeps"].grids)
    assert "no measured point, only a timeline of batches" in row[2]


def test_an_empty_folder_says_so_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--index", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "No records here yet" in page
    assert f"{tmp_path} is empty: it has no records (*.json)." in page
    assert "make measure MODEL=ranker" in page
    assert f"written: {tmp_path / 'index.html'}" in capsys.readouterr().out
    assert main(["--index", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_without_a_folder_all_places_are_read_and_a_browser_opens(tmp_path: Path) -> None:
    """The browser of the environment is a script, which notes what it was told to open."""
    filled(tmp_path / "build" / "load")
    study().write(tmp_path / "perf" / "results" / "local" / "tune" / "study.json")
    script = tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    script.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "perf.report", "--open"],
        cwd=tmp_path,
        env={**os.environ, "BROWSER": f"{script} %s", "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 results, 0 files that cannot be read" in done.stdout
    page = tmp_path / "build" / "report" / "index.html"
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()
    assert page.read_text().count('<a href="study') == 1


def test_no_option_of_the_index_is_ignored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--index", str(tmp_path), "--format", "csv"]) == 2
    assert "--format" in capsys.readouterr().err
