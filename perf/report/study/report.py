"""The report of a study: its parts on the terminal, as a page, as PNG files, and as JSON of the figures."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from perf.records import file
from perf.report.figure import Figure, Palette
from perf.report.page import Legend, render_sections
from perf.report.section import Section
from perf.report.study.difference import difference
from perf.report.study.evidence import Evidence
from perf.report.study.latency_by_load import latency_by_load
from perf.report.study.noise import noise
from perf.report.study.points import OTHER, OTHERS, palette
from perf.report.study.search import provenance, search
from perf.report.study.tail import tail
from perf.report.study.verdict import verdict
from triton_batching import whole_file
from triton_batching.terminal import Mistake

FORMAT = 1
PARTS = (verdict, difference, latency_by_load, tail, search, noise, provenance)
STUDY_FORMATS = ("table", "html", "png", "json")
# The page includes the figures, so PNG files are written only on request.
STUDY_DEFAULT = ("table", "html", "json")


def report_studies(paths: Sequence[Path], out: Path, formats: Sequence[str], console: Console) -> None:
    """Write the page of each study as NAME.html, its figures as NAME-*.png and their values as NAME.figures.json.

    Raises `RecordError`, and `Mistake` for an unknown format.
    """
    if not set(formats) <= set(STUDY_FORMATS):
        raise Mistake(
            f"--format {' '.join(formats)}: {paths[0]} is a study, whose formats are {', '.join(STUDY_FORMATS)}. Give "
            "one of these, or all."
        )
    for path in paths:
        with console.status(f"drawing {path.name}"):
            evidence = Evidence.read(path)
            all_sections = sections(evidence)
        if "table" in formats:
            _print(all_sections, console)
        if "png" in formats:
            pictures = write_png(evidence, all_sections, out)
            console.print(f"written: {len(pictures)} figures, {out / evidence.name}-*.png", markup=False)
        for name, write_file in (("html", write_html), ("json", write_json)):
            if name in formats:
                console.print(f"written: {write_file(evidence, all_sections, out)}", markup=False)


def _print(all_sections: Sequence[Section], console: Console) -> None:
    """Print the verdict, all banners, and what is missing."""
    console.print(all_sections[0].title, style="bold", markup=False)
    for section in all_sections:
        if section.banner:
            console.print(section.banner, style="yellow", markup=False)
    for sentence in all_sections[0].sentences:
        console.print(sentence, markup=False)
    for number, section in enumerate(all_sections, 1):
        for sentence in section.missing:
            console.print(f"part {number}, {section.title}, is missing: {sentence}", style="dim", markup=False)


def sections(evidence: Evidence) -> tuple[Section, ...]:
    """All parts in order; each says what the records lack for it."""
    return tuple(part(evidence) for part in PARTS)


def write_html(evidence: Evidence, all_sections: Sequence[Section], folder: Path) -> Path:
    """Write the page."""
    return whole_file.write(folder / f"{evidence.name}.html", page(evidence, all_sections))


def page(evidence: Evidence, all_sections: Sequence[Section]) -> str:
    """A page without network access; equal records give equal bytes."""
    study = evidence.study
    # In an open loop the load fixes the throughput, so the tuner looks for the lowest p99.
    aims = {"throughput": "the lowest p99" if evidence.open else "the highest throughput", "cost": "the lowest cost"}
    aim = aims.get(study.objective, f"the highest {study.objective}")
    title = f"{study.model}, {study.config_name}: {study.target.percent:g} % within {study.target.latency_ms:g} ms"
    return render_sections(
        all_sections,
        title=f"{title}, {study.load}, for {aim}",
        keys=keys(evidence),
        command=f"Made by triton-batching report from {evidence.name}.json.",
    )


def write_png(evidence: Evidence, all_sections: Sequence[Section], folder: Path) -> tuple[Path, ...]:
    """Write the figures to files named after the study and the figure."""
    return tuple(
        figure.png(folder / f"{evidence.name}-{figure.name}.png", _title(evidence, figure))
        for section in all_sections
        for figure in section.figures
    )


def write_json(evidence: Evidence, all_sections: Sequence[Section], folder: Path) -> Path:
    """Write the values behind the page, part by part; null stands for infinity, as in the record."""
    content = {
        "format": FORMAT,
        "kind": "study figures",
        "study": f"{evidence.name}.json",
        "parts": {
            section.name: {"title": section.title, "missing": section.missing, **section.data}
            for section in all_sections
        },
    }
    return whole_file.write(folder / f"{evidence.name}.figures.json", file.json_text(content))


def keys(evidence: Evidence) -> Legend:
    """The configurations of the page: a switch for those with a role, a list of all others."""
    named = dict.fromkeys((evidence.shown, evidence.study.default))
    others = [each for each in dict.fromkeys((*evidence.candidates, *evidence.predicted)) if each not in named]
    whole = palette(evidence)
    switches = Palette(colours={name: colour for name, colour in whole.colours.items() if name != OTHERS})
    return Legend(palette=switches, others=tuple(map(evidence.label, others)), other_colour=OTHER)


def _title(evidence: Evidence, figure: Figure) -> str:
    """Model and caption, wrapped to the width of the figure."""
    return textwrap.fill(f"{evidence.study.model}: {figure.caption}", 150 if figure.wide else 74)
