"""The pages with tables are what the records say; archives of records give back the folder."""

import json
import re
from pathlib import Path

import pytest

from perf.studies import archive
from perf.studies.archive import ROOT
from perf.studies.pages.__main__ import BLOCK, TABLES, differing, filled, main, pages
from triton_batching.terminal import Mistake

PAGE = """before
<!-- table: served share (python -m perf.studies.pages) -->
an old table
<!-- end of table -->
after
"""


def test_the_pages_are_what_the_records_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_every_table_is_in_a_page() -> None:
    names = {block["name"] for page in pages(ROOT) for block in BLOCK.finditer(page.read_text())}
    assert names == set(TABLES)


def test_only_the_table_is_replaced_and_only_once(tmp_path: Path) -> None:
    page = tmp_path / "perf" / "PAGE.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    (text,) = differing(tmp_path).values()
    assert text.startswith("before\n<!-- table: served share")
    assert text.endswith("<!-- end of table -->\nafter\n")
    assert "| resnet50 | 0.9" in text
    assert "an old table" not in text
    page.write_text(text)
    assert differing(tmp_path) == {}


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(Mistake, match=r"page\.md: 'nothing' is not a table"):
        filled(PAGE.replace("served share", "nothing"), "page.md")


def test_an_archive_gives_back_the_folder(tmp_path: Path) -> None:
    records = {"a.json": {"one": [1, 2.5, None]}, "deep/er/b.json": {"two": "x"}}
    for name, record in records.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    packed = tmp_path / "folder.jsonl"
    assert archive.main(["pack", str(tmp_path / "folder"), str(packed)]) == 0
    assert archive.main(["unpack", str(packed), str(tmp_path / "again")]) == 0
    again = {
        str(path.relative_to(tmp_path / "again")): json.loads(path.read_text())
        for path in (tmp_path / "again").rglob("*.json")
    }
    assert again == records


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"path": "../out.json", "record": {}}'])
def test_a_file_that_is_no_archive_is_a_users_mistake(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.jsonl").write_text(text)
    assert archive.main(["unpack", str(tmp_path / "file.jsonl"), str(tmp_path / "folder")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'file.jsonl'}: ")
    assert not (tmp_path / "out.json").exists()


def test_every_section_of_the_results_names_its_command() -> None:
    _, *sections = (ROOT / "perf" / "RESULTS.md").read_text().split("\n## ")
    without = [section.partition("\n")[0] for section in sections if not re.search(r"`(python\s-m|make)\s\w", section)]
    assert without == []
