import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from studies import CHOSEN, milliseconds, study

from perf.measure.service_curve import Size
from perf.measure.service_profile import ServiceTimes, write
from perf.records.study import PROFILE, Study
from perf.report.__main__ import main
from perf.report.study.evidence import Evidence
from perf.report.study.heat import heat
from perf.report.study.noise import noise
from perf.report.study.parts import parts
from perf.report.study.report import PARTS, sections, write_html, write_json, write_png
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
        self.unlabelled = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags[tag] += 1
        self.references += [found[name] or "" for name in ("src", "href", "xlink:href", "action") if name in found]
        self.ids += [one for one in (found.get("id"),) if one]
        self.unlabelled += tag == "svg" and not found.get("aria-label")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(of: Study, folder: Path, name: str = "study") -> str:
    evidence = Evidence(study=of, name=name)
    return write_html(evidence, sections(evidence), folder).read_text()


def empty() -> Study:
    return replace(study(), chosen=None, trials=(), predictions=(), steps=(), space={}, limit="", after_pbtxt="")


@pytest.mark.parametrize("load", LOADS)
def test_a_full_study_has_all_ten_parts_and_misses_nothing(tmp_path: Path, load: str) -> None:
    evidence = Evidence(study=study(load), name="study")
    found = sections(evidence)
    assert [one.name for one in found] == [
        *("verdict", "difference", "load", "tail", "batches", "parts", "map", "search", "noise", "provenance")
    ]
    assert [one.missing for one in found] == [()] * 10
    assert all(one.sentences for one in found)
    drawn = [figure for one in found for figure in one.pictures]
    assert all(figure.caption for figure in drawn)
    text = page(study(load), tmp_path)
    assert text.count("<svg") == len(drawn) >= 11
    for number, one in enumerate(found[1:], 2):
        assert f"<h2>{number}. {one.title}</h2>" in text


@pytest.mark.parametrize("of", [study(), study("closed:16"), empty()], ids=["open", "closed", "empty"])
def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path: Path, of: Study) -> None:
    text = page(of, tmp_path)
    checker = Checker(text)
    assert checker.open == []
    assert checker.tags["script"] == checker.tags["link"] == checker.tags["img"] == checker.unlabelled == 0
    assert all(one.startswith("#") and one[1:] in checker.ids for one in checker.references)
    assert len(checker.ids) == len(set(checker.ids)) >= 10
    assert not re.findall(r"https?://(?!www\.w3\.org/(?:1999/xlink|2000/svg))|@import|url\((?!#)", text)


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        path = study().write(tmp_path / name / "study.json")
        evidence = Evidence.read(path)
        found = sections(evidence)
        written.append([write_html(evidence, found, path.parent), write_json(evidence, found, path.parent)])
    for one, two in zip(*written, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_names_and_texts_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>&'
    of = replace(study(), model=evil, config_name=evil, limit=evil, before_pbtxt=evil, command=(evil,))
    of = replace(of, steps=(replace(of.steps[0], text=evil),), versions={evil: evil})
    checker = Checker(page(of, tmp_path))
    assert checker.tags["script"] == 0
    assert checker.open == []


def test_an_empty_study_says_what_is_missing_in_every_part(tmp_path: Path) -> None:
    found = sections(Evidence(study=empty(), name="study"))
    silent = [one.name for one in found if not one.missing]
    # the machine and the versions are known even for an empty study
    assert silent == ["provenance"]
    assert found[0].title.startswith("No verdict: the study is unfinished")
    assert found[1].missing[0].startswith("The study is unfinished")
    text = page(empty(), tmp_path)
    assert text.count('<p class="missing">') >= 9
    for number in range(2, 11):
        assert f"<h2>{number}. " in text


def test_each_missing_piece_is_named() -> None:
    whole = study()
    bare = tuple(replace(one, parts_us={}) for one in whole.trials)
    cases = (
        (replace(whole, predictions=()), heat, "No configuration was simulated"),
        (replace(whole, steps=()), search, "no log of the search"),
        (replace(whole, model_sha256=""), provenance, "no digest of the model file"),
        (replace(whole, trials=bare), parts, "only the parts of the mean are measured"),
        (replace(whole, trials=whole.trials[:3]), noise, "A/A noise is unknown"),
        (replace(whole, trials=whole.trials[:3]), verdict, "no gain is claimed"),
        (replace(whole, trials=tuple(replace(one, stage=PROFILE) for one in whole.trials)), tail, "was measured"),
    )
    for of, part, said in cases:
        assert said in " ".join(part(Evidence(study=of, name="study")).missing)


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
    found = service(evidence)
    # 2 x (8 + b / 2) ms; b / s(b) at 32 is 32 / 48, of which 90 % is reached from 24 rows on
    assert found.sentences[0].startswith(
        "Profiled before the search: s(b) = 16.0 ms + 1.00 ms per row (R² 1.00, n = 1,600"
    )
    assert "from 24 rows on (40.0 ms, 600 rows/s)" in found.sentences[0]
    assert found.sentences[1].startswith("Counted in the measurements: s(b) = 8.0")
    assert found.missing == ()
    # Ramps of other configurations with as many instances and threads are drawn too, each in a colour of its own.
    more = Evidence(study=study(), name="study", ramps=(ramp, replace(ramp, config_name="b"), replace(ramp, threads=1)))
    (times,) = (one.figure for one in service(more).pictures if one.name == "service-time")
    assert len({line.get_color() for line in times.axes[0].lines}) == len(times.axes[0].lines) == 3


def test_the_program_writes_page_figures_and_values_and_can_be_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study().write(tmp_path / "study.json")
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert main([str(tmp_path), "--format", "table"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == out.splitlines()[0]
    assert out.startswith(f"Use {CHOSEN}, because")
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"study.json", "study.html", "study.figures.json"}
    assert main([str(tmp_path), "--format", "all"]) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert {"study.json", "study.html", "study.figures.json", "study-tail.png", "study-map-1.png"} <= files
    assert not [name for name in files if name.startswith("study.figures.") and name != "study.figures.json"]
    values = json.loads((tmp_path / "study.figures.json").read_text())
    assert list(values["parts"]) == [one.name for one in sections(Evidence(study=study(), name="s"))]
    assert len(values["parts"]["load"]["trials"]) == len(study().trials)
    assert Image.open(tmp_path / "study-tail.png").width == 1240


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


def test_every_figure_becomes_a_file(tmp_path: Path) -> None:
    evidence = Evidence(study=study("closed:16"), name="x")
    found = sections(evidence)
    written = write_png(evidence, found, tmp_path / "new")
    assert [path.name for path in written] == [f"x-{figure.name}.png" for one in found for figure in one.pictures]
    assert len(PARTS) == 10
