import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from studies import study

from perf.records.study import PROFILE, Study
from perf.report.__main__ import main
from perf.report.section import Section
from perf.report.study.evidence import Evidence
from perf.report.study.noise import noise
from perf.report.study.report import PARTS, sections, write_html, write_json
from perf.report.study.search import provenance, search
from perf.report.study.tail import tail
from perf.report.study.verdict import verdict

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADS = ("poisson:380", "closed:16")


class Checker(HTMLParser):
    """Every tag closed in order, what is referred to, and the texts of headings and of what is missing."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags[tag] += 1
        self.references += [values[name] or "" for name in ("src", "href", "xlink:href", "action") if name in values]
        self.ids += [values["id"] or ""] if "id" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def empty() -> Study:
    return replace(study(), chosen=None, trials=(), predictions=(), steps=(), space={}, limit="", after_pbtxt="")


def section_text(part: Callable[[Evidence], Section], shown: Study) -> str:
    """What a part says is missing."""
    return " ".join(part(Evidence(study=shown, name="study")).missing)


@dataclass(frozen=True)
class Page:
    """The parts of a study and its page."""

    sections: tuple[Section, ...]
    text: str


def drawn(shown: Study, folder: Path) -> Page:
    evidence = Evidence(study=shown, name="study")
    parts_of_page = sections(evidence)
    return Page(sections=parts_of_page, text=write_html(evidence, parts_of_page, folder).read_text())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages of an open load, of a closed one and of an empty study. Drawing one takes a second."""
    folder = tmp_path_factory.mktemp("pages")
    return {"empty": drawn(empty(), folder)} | {load: drawn(study(load), folder) for load in LOADS}


@pytest.mark.parametrize("load", LOADS)
def test_a_full_study_has_all_parts_and_misses_nothing(pages: dict[str, Page], load: str) -> None:
    page = pages[load]
    assert [section.name for section in page.sections] == [
        *("verdict", "difference", "load", "tail", "search", "noise", "provenance")
    ]
    assert [section.missing for section in page.sections] == [()] * len(PARTS)
    assert all(section.sentences for section in page.sections)
    figures = [figure for section in page.sections for figure in section.figures]
    assert all(figure.caption for figure in figures)
    assert page.text.count("data-chart=") == len(figures) >= 5
    for number, section in enumerate(page.sections[1:], 2):
        assert f"<h2>{number}. {section.title}</h2>" in page.text


@pytest.mark.parametrize("name", [*LOADS, "empty"])
def test_the_page_is_well_formed_and_needs_nothing_else(pages: dict[str, Page], name: str) -> None:
    text = pages[name].text
    checker = Checker(text)
    assert checker.open == []
    # The scripts are on the page: the library and ours if there is a figure, and the specification of each.
    drawn = sum(len(section.figures) for section in pages[name].sections)
    assert checker.tags["script"] == (drawn + 2 if drawn else 0)
    assert checker.tags["link"] == checker.tags["img"] == 0
    assert len(text.encode()) < 2_000_000
    assert all(reference.startswith("#") and reference[1:] in checker.ids for reference in checker.references)
    assert len(checker.ids) == len(set(checker.ids)) >= len(PARTS)
    assert not re.findall(
        r"""(?:src|href)=["']?https?:|@import|url\((?!#)""", re.sub(r"(?s)<script>.*?</script>", "", text)
    )


def test_equal_records_give_equal_pages_and_values(pages: dict[str, Page], tmp_path: Path) -> None:
    evidence = Evidence.read(study().write(tmp_path / "study.json"))
    again = drawn(evidence.study, tmp_path)
    assert again.text == pages[LOADS[0]].text
    values = [write_json(evidence, page.sections, tmp_path).read_bytes() for page in (again, pages[LOADS[0]])]
    assert values[0] == values[1]


def test_names_and_texts_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>&'
    steps = (replace(study().steps[0], text=evil),)
    evil_study = replace(
        study(), model=evil, config_name=evil, limit=evil, before_pbtxt=evil, command=(evil,), steps=steps
    )
    # Fewer figures are drawn of one prediction and three trials.
    small = {"predictions": study().predictions[:1], "trials": study().trials[:3]}
    text = drawn(replace(evil_study, versions={evil: evil}, **small), tmp_path).text  # type: ignore[arg-type]
    checker = Checker(text)
    assert checker.open == []
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;") >= 7


def test_an_empty_study_says_what_is_missing_in_every_part(pages: dict[str, Page]) -> None:
    page = pages["empty"]
    # the machine and the versions are known even for an empty study
    assert [section.name for section in page.sections if not section.missing] == ["provenance"]
    assert page.sections[0].title.startswith("No verdict: the study is unfinished")
    assert page.sections[1].missing[0].startswith("The study is unfinished")
    assert page.text.count('<p class="missing">') >= 6
    for number in range(2, len(PARTS) + 1):
        assert f"<h2>{number}. " in page.text


def test_each_missing_piece_is_named() -> None:
    whole = study()
    profiled = tuple(replace(trial, stage=PROFILE) for trial in whole.trials)
    cases = (
        (replace(whole, steps=()), search, "no log of the search"),
        (replace(whole, model_sha256=""), provenance, "no digest of the model file"),
        (replace(whole, trials=whole.trials[:3]), noise, "A/A noise is unknown"),
        (replace(whole, trials=whole.trials[:3]), verdict, "no gain is claimed"),
        (replace(whole, trials=profiled), tail, "was measured"),
    )
    for incomplete, part, message in cases:
        assert message in section_text(part, incomplete)


def test_the_program_writes_page_figures_and_values_and_can_be_run_again(
    pages: dict[str, Page], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty().write(tmp_path / "study.json")
    assert main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"study.json", "study.html", "study.figures.json"}
    capsys.readouterr()
    study().write(tmp_path / "study.json")
    assert main([str(tmp_path), "--format", "all"]) == 0
    assert capsys.readouterr().out.startswith("p99 <= 40 ms: met (p99 ")
    whole = pages[LOADS[0]]
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"study-{figure.name}.png" for section in whole.sections for figure in section.figures
    }
    values = json.loads((tmp_path / "study.figures.json").read_text())
    assert list(values["parts"]) == [section.name for section in whole.sections]
    assert len(values["parts"]["load"]["trials"]) == len(study().trials)
    assert Image.open(tmp_path / "study-tail.png").width == 900


@pytest.mark.parametrize(("form", "kind"), [("csv", "study"), ("json", "sweep")])
def test_a_form_that_the_folder_has_not_ends_with_2(
    tmp_path: Path, form: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "study":
        study().write(tmp_path / "study.json")
    assert main([str(tmp_path), "--format", form]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--format" in line


def test_a_study_of_another_version_ends_with_2_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study().write(tmp_path / "study.json")
    path.write_text(path.read_text().replace('"format": 1', '"format": 9', 1))
    assert main([str(tmp_path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("form", ["html", "json"])
def test_a_folder_that_cannot_be_made_ends_with_2(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    empty().write(tmp_path / "study.json")
    (tmp_path / "file").touch()
    assert main([str(tmp_path), "--out", str(tmp_path / "file" / "new"), "--format", form]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written to" in line
