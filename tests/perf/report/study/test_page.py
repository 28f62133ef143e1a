"""The page of a study, its figures and files."""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from charts import rows
from PIL import Image
from studies import CHOSEN, study

from perf.records.study import Study
from perf.report.__main__ import main
from perf.report.section import Section
from perf.report.study.evidence import Evidence
from perf.report.study.latency_by_load import rates, throughput
from perf.report.study.report import PARTS, sections, write_html, write_json
from perf.report.study.tail import tail
from perf.stats.percentile import percentile_ms

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADS = ("poisson:380", "closed:16")


class Checker(HTMLParser):
    """Every tag closed in order, and what is referred to."""

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


@dataclass(frozen=True)
class Page:
    """The parts of a study and its page."""

    sections: tuple[Section, ...]
    text: str


def drawn(shown: Study, folder: Path) -> Page:
    evidence = Evidence(study=shown, name="study")
    parts = sections(evidence)
    return Page(sections=parts, text=write_html(evidence, parts, folder).read_text())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages of an open load, of a closed one and of an empty study. Drawing one takes a second."""
    folder = tmp_path_factory.mktemp("pages")
    return {"empty": drawn(empty(), folder)} | {load: drawn(study(load), folder) for load in LOADS}


@pytest.mark.slow
def test_a_full_study_misses_nothing_and_an_empty_one_says_what_it_misses(pages: dict[str, Page]) -> None:
    for load in LOADS:
        assert [section.missing for section in pages[load].sections] == [()] * len(PARTS)
        figures = [figure for section in pages[load].sections for figure in section.figures]
        assert pages[load].text.count("data-chart=") == len(figures) >= 5
        assert all(figure.caption for figure in figures)
    # The machine and the versions are known even for an empty study.
    assert [section.name for section in pages["empty"].sections if not section.missing] == ["provenance"]
    assert pages["empty"].text.count('<p class="missing">') >= 6


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
    without_scripts = re.sub(r"(?s)<script>.*?</script>", "", text)
    assert not re.findall(r"""(?:src|href)=["']?https?:|@import|url\((?!#)""", without_scripts)


@pytest.mark.slow
def test_equal_records_give_equal_pages_and_values(pages: dict[str, Page], tmp_path: Path) -> None:
    evidence = Evidence.read(study().write(tmp_path / "study.json"))
    again = drawn(evidence.study, tmp_path)
    assert again.text == pages[LOADS[0]].text
    values = [write_json(evidence, page.sections, tmp_path).read_bytes() for page in (again, pages[LOADS[0]])]
    assert values[0] == values[1]


@pytest.mark.slow
def test_names_and_texts_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>&'
    texts = {"model": evil, "config_name": evil, "limit": evil, "before_pbtxt": evil, "command": (evil,)}
    # Fewer figures are drawn of one prediction and three trials.
    small = {"predictions": study().predictions[:1], "trials": study().trials[:3], "versions": {evil: evil}}
    steps = (replace(study().steps[0], text=evil),)
    text = drawn(replace(study(), steps=steps, **texts, **small), tmp_path).text  # type: ignore[arg-type]
    assert Checker(text).open == []
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;") >= 7


def test_every_measurement_is_a_point_at_its_percentile() -> None:
    records = Evidence(study=study(), name="study")
    points = rows(rates(records), "point")
    for percent in (50, 95, 99):
        values = sorted(row["y"] for row in points if row["of"] == f"p{percent}")
        assert values == pytest.approx(sorted(percentile_ms(trial.latencies_us, percent) for trial in records.trials))
    found = rows(throughput(Evidence(study=study("closed:16"), name="study")), "point")
    assert (len([row for row in found if "verdict" in row]), len([row for row in found if "simulated" in row])) == (
        20,
        12,
    )


def test_the_tail_counts_unanswered_requests() -> None:
    *others, last = (trial for trial in study().trials if trial.candidate == CHOSEN)
    lost = replace(last, latencies_us=(float("inf"), *last.latencies_us[1:]))
    section = tail(Evidence(study=replace(study(), trials=(*others, lost)), name="study"))
    assert "1 of 2,800 never answered" in section.figures[0].caption


@pytest.mark.slow
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
    assert Image.open(tmp_path / "study-tail.png").width == 900
