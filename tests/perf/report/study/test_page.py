import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from charts import layers
from PIL import Image
from studies import milliseconds, study

from perf.measure.service_line import Size
from perf.measure.service_profile import ServiceTimes, write
from perf.records.study import PROFILE, Study
from perf.report.__main__ import main
from perf.report.section import Section
from perf.report.study.evidence import Evidence
from perf.report.study.heat import heat
from perf.report.study.noise import noise
from perf.report.study.parts import parts
from perf.report.study.report import PARTS, sections, write_html, write_json
from perf.report.study.search import provenance, search
from perf.report.study.service import service
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
def test_a_full_study_has_all_ten_parts_and_misses_nothing(pages: dict[str, Page], load: str) -> None:
    page = pages[load]
    assert [section.name for section in page.sections] == [
        *("verdict", "difference", "load", "tail", "batches", "parts", "map", "search", "noise", "provenance")
    ]
    assert len(PARTS) == 10
    assert [section.missing for section in page.sections] == [()] * 10
    assert all(section.sentences for section in page.sections)
    figures = [figure for section in page.sections for figure in section.figures]
    assert all(figure.caption for figure in figures)
    assert page.text.count("data-chart=") == len(figures) >= 11
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
    assert len(checker.ids) == len(set(checker.ids)) >= 10
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
    assert page.text.count('<p class="missing">') >= 9
    for number in range(2, 11):
        assert f"<h2>{number}. " in page.text


def test_each_missing_piece_is_named() -> None:
    whole = study()
    untraced = tuple(replace(trial, parts_us={}) for trial in whole.trials)
    profiled = tuple(replace(trial, stage=PROFILE) for trial in whole.trials)
    cases = (
        (replace(whole, predictions=()), heat, "No configuration was simulated"),
        (replace(whole, steps=()), search, "no log of the search"),
        (replace(whole, model_sha256=""), provenance, "no digest of the model file"),
        (replace(whole, trials=untraced), parts, "only the parts of the mean are measured"),
        (replace(whole, trials=whole.trials[:3]), noise, "A/A noise is unknown"),
        (replace(whole, trials=whole.trials[:3]), verdict, "no gain is claimed"),
        (replace(whole, trials=profiled), tail, "was measured"),
    )
    for incomplete, part, message in cases:
        assert message in section_text(part, incomplete)


def test_a_service_time_record_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = replace(study(), profiles=("ranker.k1.json",)).write(tmp_path / "study.json")
    evidence = Evidence.read(path)
    assert evidence.lost == ("ranker.k1.json",)
    assert "ranker.k1.json" in service(evidence).missing[0]


def test_a_service_time_record_is_drawn_beside_what_the_measurements_counted(tmp_path: Path) -> None:
    ramp = ServiceTimes(
        model="ranker",
        config_name="default",
        config_sha256="c",
        model_sha256="m",
        machine=study().machine,
        versions={},
        started_at="2030-01-01T00:00:00+00:00",
        command=("python",),
        instances=1,
        threads=None,
        max_batch_size=32,
        # twice what the measurements take
        sizes=tuple(Size(rows=b, executions=50, mean_us=2e3 * milliseconds(b), error_us=9.0) for b in range(1, 33)),
        alone_us=8500.0,
        noise=(1.0,) * 15,
        noise_count=0,
        levels=(),
    )
    write(ramp, tmp_path)
    evidence = Evidence.read(replace(study(), profiles=(ramp.file_name,)).write(tmp_path / "study.json"))
    assert (evidence.ramps, evidence.lost) == ((ramp,), ())
    section = service(evidence)
    # 2 x (8 + b / 2) ms; b / s(b) at 32 is 32 / 48, of which 90 % is reached from 24 rows on
    assert section.sentences[0].startswith("Before the search: s(b) = 16.0 ms + 1.00 ms per row (R² 1.00, n = 1,600")
    assert "from 24 rows on (40.0 ms, 600 rows/s)" in section.sentences[0]
    assert section.sentences[1].startswith("In the measurements: s(b) = 8.0")
    assert section.missing == ()
    # Ramps of other configurations with as many instances and threads are drawn too, each in a colour of its own.
    more = Evidence(study=study(), name="study", ramps=(ramp, replace(ramp, config_name="b"), replace(ramp, threads=1)))
    (times,) = (figure for figure in service(more).figures if figure.name == "service-time")
    points, *_ = layers(times)
    assert len(points["encoding"]["color"]["scale"]["range"]) == 2


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
