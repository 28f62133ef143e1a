"""The ten parts together, as one page, as PNG files, and as JSON of the figures that they derived."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup

from perf.report.drawing import STYLE, png, svg
from perf.report.page import make_folder, render, write
from perf.report.study.difference import difference
from perf.report.study.evidence import Evidence
from perf.report.study.heat import heat
from perf.report.study.load import load
from perf.report.study.noise import noise
from perf.report.study.parts import parts
from perf.report.study.provenance import provenance
from perf.report.study.search import search
from perf.report.study.section import Drawn, Section
from perf.report.study.service import service
from perf.report.study.tail import tail
from perf.report.study.verdict import verdict

FORMAT = 1
PARTS = (verdict, difference, load, tail, service, parts, heat, search, noise, provenance)


def sections(evidence: Evidence) -> tuple[Section, ...]:
    """All ten, in order; a part that the records cannot fill says what is missing."""
    with mpl.rc_context(STYLE):
        return tuple(part(evidence) for part in PARTS)


def write_html(evidence: Evidence, found: Sequence[Section], folder: Path) -> Path:
    """One page that needs nothing else: no script, no network; equal records give equal bytes."""
    study = evidence.study
    with mpl.rc_context(STYLE):
        figures = {one.name: [_figure(drawn) for drawn in one.drawn] for one in found}
    # What an open load that is carried offers is its throughput, so its tuner looks for the lowest p99.
    aims = {"throughput": "the lowest p99" if evidence.open else "the most throughput", "cost": "the least cost"}
    aim = aims.get(study.objective, f"the most {study.objective}")
    title = f"{study.model}, {study.config_name}: {study.sla.percent:g} % within {study.sla.latency_ms:g} ms"
    page = render(
        "study.html.j2",
        title=f"{title}, {study.load}, for {aim}",
        sections=found,
        figures=figures,
        command=f"Made by python -m perf.report from {evidence.name}.json.",
    )
    return write(folder / f"{evidence.name}.html", page)


def write_png(evidence: Evidence, found: Sequence[Section], folder: Path) -> tuple[Path, ...]:
    """The same figures as files, named by study and figure."""
    make_folder(folder)
    with mpl.rc_context(STYLE):
        return tuple(
            png(drawn.figure, folder / f"{evidence.name}-{drawn.name}.png", _title(evidence, drawn))
            for one in found
            for drawn in one.drawn
        )


def write_json(evidence: Evidence, found: Sequence[Section], folder: Path) -> Path:
    """What was derived, part by part; null is infinite, as in the record."""
    content = {
        "format": FORMAT,
        "kind": "study figures",
        "study": f"{evidence.name}.json",
        "parts": {one.name: {"title": one.title, "missing": one.missing, **one.data} for one in found},
    }
    return write(
        folder / f"{evidence.name}.figures.json", json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"
    )


def _title(evidence: Evidence, drawn: Drawn) -> str:
    """Model and caption, in lines as long as the figure is wide."""
    return textwrap.fill(f"{evidence.study.model}: {drawn.caption}", 150 if drawn.wide else 74)


def _figure(drawn: Drawn) -> dict[str, object]:
    return {"caption": drawn.caption, "wide": drawn.wide, "svg": Markup(svg(drawn.figure, drawn.name, drawn.caption))}


def _plain(value: object) -> object:
    """What JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
