"""Reports on the records of a folder: what `python -m perf.report` does."""

import argparse
import csv
import dataclasses
import io
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from perf.records import batch_timeline
from perf.records.batch_timeline import BatchTimeline
from perf.records.measurement import AnalyzerLoad, Ceiling, Measurement, MeasurementKey, is_record, read
from perf.records.resource_use import ResourceUse
from perf.records.study import is_study
from perf.report.figure import Palette
from perf.report.page import Legend, render
from perf.report.study.report import STUDY_DEFAULT, STUDY_FORMATS, report_studies
from perf.report.sweep.figures import TRADEOFF, figures, palette_of, save_png
from perf.report.sweep.marks import LITTLE_LIMIT, percent
from perf.report.sweep.summary import Comparison, Row, compare
from perf.report.sweep.table import filled, markdown, table
from perf.report.sweep.timeline import timeline
from perf.report.sweep.verdict import advice, basis, once, sentences
from perf.stats.interval import Interval
from triton_batching import whole_file
from triton_batching.machine import Machine
from triton_batching.options import refuse_unused
from triton_batching.terminal import Failure, Mistake, terminal

DEFAULT = ("table", "csv", "html")
SWEEP_FORMATS = (*DEFAULT, "png")


class ReportError(Mistake):
    """A folder without anything to report; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A folder of records and their comparisons."""

    folder: Path
    entries: tuple[Measurement | Ceiling, ...]
    comparisons: tuple[Comparison, ...]
    timelines: tuple[BatchTimeline, ...] = ()

    @property
    def machine(self) -> Machine:
        """The machine of all measurements."""
        return _about(self.entries[0]).machine

    @property
    def versions(self) -> str:
        """The versions of server and clients."""
        pairs = {f"{name} {version}" for entry in self.entries for name, version in _about(entry).versions.items()}
        return ", ".join(sorted(pairs))

    @property
    def span(self) -> str:
        """The first and the last start of a measurement."""
        starts = sorted(entry.started_at for entry in self.entries)
        return f"{_time(starts[0])} to {_time(starts[-1])}"


def summarise(folder: Path) -> Summary:
    """Read a folder; raises `ReportError`, `RecordError` for a bad file, `MixtureError` for incomparable records."""
    if folder.is_file():
        raise ReportError(f"{folder}: a file, not a folder. Name its folder: {folder.parent}")
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder. Measure first: triton-batching measure MODEL --results {folder}")
    entries = tuple(read(folder))
    comparisons = compare(entries)
    if not comparisons:
        below = sorted({path.parent for path in folder.glob("*/*.json") if is_study(path) or is_record(path)})
        remedy = f"Measure first: triton-batching measure MODEL --results {folder}"
        if below:
            others = f" (or {', '.join(map(str, below[1:4]))})" if below[1:] else ""
            remedy = f"Name a folder below it: triton-batching report {below[0]}{others}"
        raise ReportError(f"{folder}: no measured point. {remedy}")
    return Summary(folder=folder, entries=entries, comparisons=comparisons, timelines=batch_timeline.read(folder))


def print_tables(console: Console, summary: Summary) -> None:
    """Print a table per model and kind of load, its verdict in sentences, and the reasons of its marks."""
    if quick := once(summary.comparisons):
        console.print(quick, style="bold", markup=False)
        console.print()
    for comparison in summary.comparisons:
        console.print(heading(comparison), style="bold", markup=False)
        console.print(table(comparison, console.width))
        for sentence in (*sentences(comparison), *basis(comparison)):
            console.print(sentence, markup=False)
        for row in comparison.rows:
            if row.marks:
                reasons = f"! {row.config_name} at {row.load.concurrency}: {'; '.join(row.marks)}"
                console.print(reasons, markup=False, style="dim")
        console.print()


def heading(comparison: Comparison) -> str:
    """The model and the kind of load in one line."""
    load = comparison.setting
    rows = f"{load.request_rows} row{'s' if load.request_rows > 1 else ''} per request"
    shapes = [f"{name} {' x '.join(map(str, dims))}" for name, dims in load.shapes]
    memory = ["shared memory"] if load.shared_memory else []
    windows = f"windows of {load.window_ms} ms or more"
    return ", ".join([f"{comparison.model}: {rows}", load.protocol, *memory, f"{load.data} data", *shapes, windows])


def write_csv(summary: Summary, folder: Path) -> Path:
    """Write all columns of all rows, with units in the names; maps are `key:value` pairs, lists have `; ` between."""
    text = io.StringIO()
    rows = [_flat(row, comparison) for comparison in summary.comparisons for row in comparison.rows]
    used = [field.name for field in dataclasses.fields(ResourceUse)]
    unknown = {name for name in used if all(row[name] is None for row in rows)}
    names = [name for name in rows[0] if name not in unknown]
    writer = csv.DictWriter(text, fieldnames=names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return whole_file.write(folder / "summary.csv", text.getvalue())


def write_html(summary: Summary, folder: Path) -> Path:
    """Write the page."""
    return whole_file.write(folder / "report.html", page(summary))


def page(summary: Summary) -> str:
    """A page without network access; equal records give equal bytes."""
    palette = palette_of(summary.comparisons, (each.name for each in summary.timelines))
    sections = [_section(number, comparison, palette) for number, comparison in enumerate(summary.comparisons, 1)]
    shown = timeline(summary.timelines, palette) if summary.timelines else None
    return render(
        "report.html.j2",
        title="What batching bought",
        figures=[figure for section in sections for figure in section["figures"]],
        keys=Legend(palette=palette),
        timeline=shown,
        quick=once(summary.comparisons),
        summary=summary,
        sections=sections,
        sources=[*map(_source, summary.entries), *map(_of_timeline, summary.timelines)],
        limits={"little": percent(LITTLE_LIMIT)},
        command=f"triton-batching report {summary.folder}",
    )


def write_png(summary: Summary, folder: Path) -> tuple[Path, ...]:
    """Write the figures to files named after model and figure."""
    return tuple(
        path
        for number, comparison in enumerate(summary.comparisons, 1)
        for path in save_png(comparison, folder, f"{number}-{comparison.model}-")
    )


def _section(number: int, comparison: Comparison, palette: Palette) -> dict[str, Any]:
    prefix = f"{number}-{comparison.model}-"
    drawn = {figure.name.removeprefix(prefix): figure for figure in figures(comparison, palette, prefix)}
    return {
        "comparison": comparison,
        "heading": heading(comparison),
        "advice": advice(comparison),
        "sentences": sentences(comparison),
        "basis": basis(comparison),
        "marked": sum(bool(row.marks) for row in comparison.rows),
        "columns": filled(comparison),
        "tradeoff": drawn.get(TRADEOFF),
        "figures": [figure for name, figure in drawn.items() if name != TRADEOFF],
    }


def _flat(row: Row, comparison: Comparison) -> dict[str, object]:
    """The cells of a row; nested values take several columns."""
    cells: dict[str, object] = {"model": row.model, "config_name": row.config_name, **_load_cells(row.load)}
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if field.name in cells or field.name == "load":
            continue
        if field.name in ("throughput", "to_baseline", "p95_to_baseline", "to_ceiling"):
            name = "mean_rows_per_s" if field.name == "throughput" else field.name
            cells |= _interval_cells(name, value)
        elif field.name in ("stages", "used"):
            cells |= dataclasses.asdict(value)
        elif isinstance(value, dict):
            cells[field.name] = " ".join(f"{key}:{part}" for key, part in value.items())
        else:
            cells[field.name] = "; ".join(value) if isinstance(value, tuple) else value
    top = comparison.ceiling
    return cells | {
        "verdict": row.verdict.word if row.verdict else "",
        "more_repeats": "" if row.more_repeats is None else row.more_repeats,
        "ceiling_rows_per_s": top.throughput_rows_per_s if top else "",
        "ceiling_batch_rows": top.rows if top else "",
    }


def _interval_cells(name: str, interval: Interval | None) -> dict[str, object]:
    """Value, ends and level; one repeat has no ends."""
    ends = ("low", "high", "level")
    bounded = interval is not None and interval.bounded
    return {f"{name}_value": interval.value if interval else ""} | {
        f"{name}_{end}": getattr(interval, end) if bounded else "" for end in ends
    }


def _load_cells(load: AnalyzerLoad) -> dict[str, object]:
    shapes = " ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in load.shapes)
    return dataclasses.asdict(load) | {"shapes": shapes}


def _of_timeline(entry: BatchTimeline) -> dict[str, str]:
    return {"name": entry.file_name, "start": _time(entry.started_at), "command": " ".join(entry.command)}


def _source(entry: Measurement | Ceiling) -> dict[str, str]:
    if isinstance(entry, Measurement):
        return {"name": entry.point.file_name, "start": _time(entry.started_at), "command": " ".join(entry.command)}
    command = f"python -m perf.measure.ceiling {entry.model} --threads {entry.threads}"
    return {"name": entry.file_name, "start": _time(entry.started_at), "command": command}


def _about(entry: Measurement | Ceiling) -> MeasurementKey | Ceiling:
    return entry.point if isinstance(entry, Measurement) else entry


def _time(started_at: str) -> str:
    return started_at.replace("T", " ").replace("+00:00", " UTC")


def run(arguments: argparse.Namespace) -> None:
    """Write the index without a folder or with `--index`; else report on the folder. `--open` shows the page."""
    if arguments.folder is None or arguments.index:
        refuse_unused((arguments.format is not None, "--format", "for the index, which is a page"))
        from perf.report import index

        page = index.run(arguments.folder, arguments.out)
    else:
        page = _folder(arguments.folder, arguments.out or arguments.folder, arguments.format)
    if arguments.open and not webbrowser.open(page.resolve().as_uri()):
        raise Failure(f"no browser was found to open {page}. Open it by hand.")


def _folder(folder: Path, out: Path, name: str | None) -> Path:
    """Report on the studies of the folder, or on its other records if it has none; the page."""
    files = sorted(folder.glob("*.json"))
    studies = [path for path in files if is_study(path)]
    if not studies:
        report(folder, out, _formats(name, DEFAULT, SWEEP_FORMATS))
        return out / "report.html"
    report_studies(studies, out, _formats(name, STUDY_DEFAULT, STUDY_FORMATS), terminal())
    if others := sum(map(is_record, files)):
        terminal().print(
            f"{folder}: only the studies are reported. Move the {others} measured point(s) into another folder and "
            "report on it.",
            markup=False,
        )
    return out / f"{studies[0].stem}.html"


def _formats(name: str | None, default: tuple[str, ...], all_formats: tuple[str, ...]) -> tuple[str, ...]:
    return default if name is None else all_formats if name == "all" else (name,)


def report(folder: Path, out: Path, formats: Sequence[str]) -> None:
    """Report on the records of sweeps in these formats; raises `ReportError`."""
    if "json" in formats:
        raise ReportError(f"{folder}: only studies have JSON, and there is none. Give --format csv.")
    console, summary = terminal(), summarise(folder)
    if "table" in formats:
        print_tables(console, summary)
    if "markdown" in formats:
        texts = ("\n".join([markdown(each), "", *basis(each)]) for each in summary.comparisons)
        console.print("\n\n".join(texts), markup=False)
    writers = {"csv": write_csv, "html": write_html, "png": write_png}
    for name in [name for name in formats if name in writers]:
        paths = writers[name](summary, out)
        for path in paths if isinstance(paths, tuple) else (paths,):
            console.print(f"written: {path}", markup=False)
