"""The pages of the index: which are drawn, when they are drawn again, and what is said of those that cannot be."""

import html
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_made import ramp
from studies import study

from perf.measure import service_profile
from perf.records import file
from perf.records.measurement import write
from perf.report.index import index, pages
from perf.report.index.present import Present
from tests.perf.report.index.test_index import compared, measured
from tests.perf.report.sweep.test_summary import ceiling
from triton_batching.machine import Machine


def drawn(folder: Path, repository: Path) -> int:
    """How many pages an index of a folder draws, in a folder beside it."""
    found: list[Path] = []

    def track(paths: object, what: str) -> list[Path]:
        chosen = [path for path in paths if isinstance(path, Path)]  # type: ignore[attr-defined]
        found.extend(chosen if what == "drawing pages" else [])
        return chosen

    index.write(index.find([folder], Present(repository)), folder.with_name("out"), track)
    return len(found)


def points(folder: Path, repository: Path, repeats: int = 2) -> list[Path]:
    """The records of a point of a sweep."""
    made = measured(repository)
    return [write(replace(made, point=replace(made.point, repeat=n)), folder) for n in range(1, repeats + 1)]


def test_other_kinds_have_a_page_of_their_values(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    content = {"format": 1, "kind": "placement", "algorithm": "exact", "nodes": [{"duty_ms": 4.5}]}
    file.write_content(content, folder / "a.json")
    found = index.find([folder], Present(repository))
    index.write(found, tmp_path / "out")
    (entry,) = found.entries
    page = (tmp_path / "out" / entry.page_name).read_text()
    assert re.search(r"nodes\[0\]\.duty_ms</td>\s*<td[^>]*>4\.5<", page)


def test_records_of_the_longest_names_have_a_page_each(tmp_path: Path, repository: Path) -> None:
    """A name may have 255 bytes, and these two begin alike."""
    folder, out = tmp_path / "records", tmp_path / "out"
    folder.mkdir()
    for end in "ab":
        (folder / f"{'n' * 249}{end}.json").write_text('{"format": 1, "kind": "placement"}')
    index.write(index.find([folder], Present(repository)), out)
    assert len({path.name for path in out.iterdir()}) == 3


def test_a_page_beside_its_record_is_linked_and_not_drawn_again(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "50 % of #2?"
    file.write_content({"format": 1, "kind": "placement", "algorithm": "exact"}, folder / "a.json")
    (folder / "a.html").write_text("a page")
    text = index.write(index.find([folder], Present(repository)), tmp_path / "out").read_text()
    assert 'href="../50%20%25%20of%20%232%3F/a.html"' in text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]


def test_records_that_fail_when_a_page_is_drawn_end_nothing(tmp_path: Path, repository: Path) -> None:
    """The line through a negative time is 0, by which nothing is divided; a ceiling without rates has no best size."""
    folder, out = tmp_path / "records", tmp_path / "out"
    made = replace(ramp(), machine=Machine.this(), started_at="2030-01-01T00:00:00+00:00")
    service_profile.write(replace(made, sizes=(replace(made.sizes[0], mean_us=-1.0),)), folder / "ramp")
    point = measured(repository).point
    of_model: dict[str, Any] = {
        "model_sha256": point.model_sha256,
        "machine": point.machine,
        "versions": point.versions,
    }
    write(measured(repository), folder / "sweep")
    write(replace(ceiling(), **of_model, threads=point.machine.cores, rows_per_s={}), folder / "sweep")
    compared("ranker", folder / "rounds")
    found = index.find([folder], Present(repository))
    assert not found.damaged
    text = index.write(found, out).read_text()
    names = {each.group: each.page_name for each in found.entries}
    assert {path.name for path in out.iterdir()} == {"index.html", names["Rounds of two configurations"]}
    said = re.findall(r"values do not fit together \((\w+)", html.unescape(text))
    assert sorted(said) == ["ValueError", "ZeroDivisionError"]
    assert names["Service times"] not in text


def test_each_comparison_of_a_folder_has_its_page(tmp_path: Path, repository: Path) -> None:
    """All of perf.compare.versus are in one folder, and a sweep may be there too."""
    folder, out = tmp_path / "records", tmp_path / "out"
    compared("ranker", folder, rounds=2)
    compared("resnet50", folder, rounds=3)
    for repeat in (1, 2):
        made = measured(repository)
        write(replace(made, point=replace(made.point, repeat=repeat)), folder)
    found = index.find([folder], Present(repository))
    index.write(found, out)
    texts = {each.model: (out / each.page_name).read_text() for each in found.entries}
    assert {model: re.findall(r"<td[^>]*>(\d rounds)<", text) for model, text in texts.items()} == {
        "m": [],
        "ranker": ["2 rounds"],
        "resnet50": ["3 rounds"],
    }
    assert len({each.page_name for each in found.entries}) == 3


def test_each_machine_of_a_folder_has_its_page(tmp_path: Path, repository: Path) -> None:
    """Both have 8 GiB when rounded."""
    folder, made = tmp_path / "records", measured(repository)
    for repeat, gib in enumerate((7.6, 7.6, 8.4, 8.4), 1):
        machine = replace(Machine.this(), memory_bytes=int(gib * 2**30))
        write(replace(made, point=replace(made.point, repeat=repeat, machine=machine)), folder)
    found = index.find([folder], Present(repository))
    assert len(found.entries) == len({each.page_name for each in found.entries}) == 2


def test_a_page_is_drawn_once_and_again_when_a_record_changes(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    path, _ = points(folder, repository)
    assert (drawn(folder, repository), drawn(folder, repository)) == (1, 0)
    later = path.stat().st_mtime + 3600
    os.utime(path, (later, later))
    assert (drawn(folder, repository), drawn(folder, repository)) == (1, 0)


def test_a_page_is_drawn_again_when_a_record_is_removed_or_an_older_one_comes(tmp_path: Path, repository: Path) -> None:
    folder, kept = tmp_path / "records", tmp_path / "kept"
    path, _ = points(folder, repository)
    shutil.copytree(folder, kept)
    os.utime(kept / path.name, (1e9, 1e9))
    assert drawn(folder, repository) == 1
    path.unlink()
    assert (drawn(folder, repository), drawn(folder, repository)) == (1, 0)
    shutil.copy2(kept / path.name, path)
    assert (drawn(folder, repository), drawn(folder, repository)) == (1, 0)


def test_the_page_of_a_study_is_drawn_again_when_its_service_times_change(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "records"
    path = service_profile.write(ramp(), folder)
    replace(study(), profiles=(path.name,)).write(folder / "study.json")
    assert (drawn(folder, repository), drawn(folder, repository)) == (2, 0)
    service_profile.write(replace(ramp(), rounds=3), folder)
    assert (drawn(folder, repository), drawn(folder, repository)) == (2, 0)


def test_pages_are_drawn_again_when_the_code_changes(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "records"
    points(folder, repository)
    assert drawn(folder, repository) == 1
    shutil.copytree(pages.PERF / "stats", tmp_path / "perf" / "stats")
    monkeypatch.setattr(pages, "PERF", tmp_path / "perf")
    monkeypatch.setattr(pages, "BESIDE", ())
    digests = []
    for addition in ("", "# a fix"):
        with (tmp_path / "perf" / "stats" / "rounds.py").open("a") as source:
            source.write(addition)
        pages.code.cache_clear()
        digests.append(pages.code())
        assert (drawn(folder, repository), drawn(folder, repository)) == (1, 0)
    pages.code.cache_clear()
    assert digests[0] != digests[1]


def test_all_code_of_a_page_counts() -> None:
    counted = {str(path.relative_to(pages.PERF.parent)) for path in pages.code_files()}
    assert {"perf/stats/rounds.py", "perf/records/file.py", "perf/report/style.html.j2"} <= counted
    assert not any(path.startswith("perf/studies") for path in counted)
