"""The reports of studies as `perf.report` makes them: on the terminal, and as files beside the records."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from perf.report.study.evidence import Evidence
from perf.report.study.report import sections, write_html, write_json, write_png
from perf.report.study.section import Section
from triton_batching.terminal import Mistake

STUDY_FORMATS = ("table", "html", "png", "json")
# The page holds the figures too, so that files of them are written where they are asked for.
STUDY_DEFAULT = ("table", "html", "json")


def report_studies(paths: Sequence[Path], out: Path, wanted: Sequence[str], console: Console) -> None:
    """Each study's page as NAME.html, NAME-*.png and NAME.figures.json; raises `Mistake`."""
    if not set(wanted) <= set(STUDY_FORMATS):
        known = ", ".join(STUDY_FORMATS)
        raise Mistake(
            f"--format {' '.join(wanted)}: {paths[0]} is a study, which has {known}. Take one of these, or all."
        )
    for path in paths:
        with console.status(f"drawing {path.name}"):
            evidence = Evidence.read(path)
            found = sections(evidence)
        if "table" in wanted:
            _print(found, console)
        written: list[Path] = []
        if "html" in wanted:
            written.append(write_html(evidence, found, out))
        if "png" in wanted:
            pictures = write_png(evidence, found, out)
            console.print(f"written: {len(pictures)} figures, {out / evidence.name}-*.png", markup=False)
        if "json" in wanted:
            written.append(write_json(evidence, found, out))
        for file in written:
            console.print(f"written: {file}", markup=False)


def _print(found: Sequence[Section], console: Console) -> None:
    """The verdict, every banner, and what is missing."""
    console.print(found[0].title, style="bold", markup=False)
    for one in found:
        if one.banner:
            console.print(one.banner, style="yellow", markup=False)
    for sentence in found[0].sentences:
        console.print(sentence, markup=False)
    for number, one in enumerate(found, 1):
        for sentence in one.missing:
            console.print(f"part {number}, {one.title}, is missing: {sentence}", style="dim", markup=False)
