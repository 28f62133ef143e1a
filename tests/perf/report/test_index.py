"""The index: what it says of the records of some places, their pages, and files that are no records."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from studies import study

from perf.records import file
from perf.records.load_record import LoadRecord
from perf.records.measurement import Measurement, write
from perf.report import index
from perf.report.__main__ import main
from perf.report.section import Link, Section
from tests.perf.compare.test_compare import fleet
from tests.perf.report.sweep.test_summary import MACHINE, record
from triton_batching.machine import Machine


def filled(folder: Path) -> LoadRecord:
    """A run of the load generator on this machine."""
    run = replace(file.read(fleet(folder.parents[1] / "old", 1, 20.0), LoadRecord), machine=Machine.this())
    run.write(folder)
    return run


def measured() -> Measurement:
    """A measurement on this machine."""
    made = record()
    return replace(made, point=replace(made.point, machine=Machine.this()))


def shown(places: list[Path]) -> dict[str, Section]:
    """The sections of an index, by title."""
    found = index.find(places)
    return {section.title: section for section in index.sections(found, places[0])}


def test_kinds_are_apart_and_other_machines_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    run = filled(folder / "load")
    write(measured(), folder / "sweep")
    write(record("dynamic"), folder / "elsewhere")
    found = shown([folder])
    assert list(found) == [
        "2 results of this machine",
        "Sweeps",
        "Runs of the load generator",
        "Records of other machines",
    ]
    ((row,),) = (grid.rows for grid in found["Records of other machines"].grids)
    assert row[1] == "dynamic"
    assert row[3] == str(MACHINE)
    ((row,),) = (grid.rows for grid in found["Runs of the load generator"].grids)
    assert row[2].startswith(f"{run.outcome.rows_per_s:.0f} rows/s in 10 s, p99 ")


def test_damaged_files_are_named_and_hide_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    write(measured(), folder)
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
    found = shown([folder])
    rows = found["Files that cannot be read"].grids[0].rows
    named = {Path(path).name: text for path, text in rows}
    assert set(named) == {"cut.json", "old.json", "wrong.json", "empty.json", "dangling.json"}
    assert "no JSON" in named["cut.json"]
    assert "its format is 0" in named["old.json"]
    assert "cannot be read" in named["dangling.json"]
    assert len(found["Sweeps"].grids[0].rows) == 1


def test_what_is_no_file_or_has_no_name_is_named_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe that nobody writes to, a device without an end, and names that are not UTF-8."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / os.fsdecode(b"a\xfe.json")).write_text("{}")
    assert main(["--index", str(tmp_path)]) == 0
    assert "0 results, 4 files that cannot be read" in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text()
    assert page.count("a pipe or a device, not a file") == 2
    assert page.count("its name is not UTF-8") == 2
    assert f"{tmp_path}/\\xff/a\\xfe.json" in page


def test_records_that_must_not_share_a_table_say_so(tmp_path: Path) -> None:
    made = measured()
    write(made, tmp_path / "records")
    write(replace(made, point=replace(made.point, repeat=2, config_sha256="another")), tmp_path / "records")
    ((row,),) = (grid.rows for grid in shown([tmp_path / "records"])["Sweeps"].grids)
    assert "differ in their configuration file" in row[2]
    assert not isinstance(row[1], Link)


def test_an_empty_folder_says_so_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--index", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "No records here yet" in page
    assert f"written: {tmp_path / 'index.html'}" in capsys.readouterr().out


@pytest.mark.slow
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
        env={**os.environ, "BROWSER": f"{script} %s", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 results, 0 files that cannot be read" in done.stdout
    page = tmp_path / "build" / "report" / "index.html"
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()
    assert page.read_text().count('<a href="study') == 1
