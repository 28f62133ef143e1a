"""The index page: every record below some folders, by kind and model, with its verdict and a link to its page."""

import os
import re
import sys
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track

from perf.measure import service_profile
from perf.measure.service_profile import ServiceTimes
from perf.records import file, round_record
from perf.records.batch_timeline import BatchTimeline
from perf.records.load_record import LoadRecord
from perf.records.measurement import Ceiling, Measurement
from perf.records.round_record import KeyedTrial, TrialKey
from perf.records.study import Study
from perf.report import command
from perf.report.page import render_sections
from perf.report.section import Grid, Link, Section
from perf.report.study.evidence import Evidence
from perf.report.study.headline import headline
from perf.report.study.report import page as study_page
from perf.report.study.report import sections as study_sections
from perf.report.sweep.summary import compare
from perf.report.sweep.verdict import advice
from perf.report.units import count, ms, number
from triton_batching import whole_file
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake, terminal

# Where the programs write their records.
PLACES = tuple(map(Path, ("perf/results", "build/load", "build/versus", "build/compare.json", "build/packed")))
# The folder of the page of these places.
OUT = Path("build/report")
NAME = "index.html"
STUDIES, SWEEPS, LOADS, ROUNDS, SERVICE, OTHERS = GROUPS = (
    *("Studies of perf.tune", "Sweeps", "Runs of the load generator", "Rounds of two configurations"),
    *("Service times", "Other results"),
)
# What `perf.report` writes beside a study.
FIGURES = "study figures"
# A file's name has at most 255 bytes; that of a page has more around the name of its record.
LONGEST = 100

Swept = Measurement | Ceiling | BatchTimeline
SWEPT: Mapping[str, type[Swept]] = {each.KIND: each for each in (Measurement, Ceiling, BatchTimeline)}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the index says of some records that belong together, and what draws their page, if anything does.

    `machine` is None for results that were computed. `page` is the page of the record: a path below the folder of the
    index for one that is drawn, and any other path for one that a program wrote beside the record.
    """

    group: str
    model: str
    what: str
    verdict: str
    started_at: str = ""
    machine: Machine | None = None
    page: Path | None = None
    draw: Callable[[], str] | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The records of some places, and what is wrong with each file that could not be read."""

    places: tuple[Path, ...]
    entries: tuple[Entry, ...]
    damaged: tuple[tuple[str, str], ...]


def run(folder: Path | None, out: Path | None) -> Path:
    """Write the index of a folder, or of all places where the programs write records; the page. Raises `Mistake`."""
    if folder is not None and not folder.exists():
        raise Mistake(f"{folder}: no such folder. Name one with records, or none for all of them.")
    found = find(PLACES if folder is None else (folder,))
    page = write(found, out or folder or OUT)
    console = terminal()
    console.print(f"{len(found.entries)} results, {len(found.damaged)} files that cannot be read", markup=False)
    console.print(f"written: {page}", markup=False)
    return page


def find(places: Sequence[Path]) -> Found:
    """Read all records; a file that cannot be read is `damaged` and ends nothing."""
    paths = sorted({path for place in places for path in _files(place)})
    entries: list[Entry] = []
    swept: dict[tuple[Path, Machine], list[Swept]] = defaultdict(list)
    keys: dict[tuple[object, ...], list[TrialKey]] = defaultdict(list)
    damaged: list[tuple[str, str]] = []
    for path in _tracked(paths, "reading records"):
        try:
            _check(path)
            kind = file.kind_of(path)
            if kind in SWEPT:
                record = file.read(path, SWEPT[kind])
                swept[path.parent, _about(record).machine].append(record)
            elif kind == KeyedTrial.KIND:
                key = round_record.read(path)[0]
                keys[path.parent, key.model, key.load, key.compared, key.machine].append(key)
            elif kind and kind != FIGURES:
                entries.append(READERS.get(kind, _other)(path))
            elif not kind:
                file.check_json(path)
        except Exception as error:
            damaged.append((os.fsencode(path).decode(errors="backslashreplace"), _sentence(error, path)))
    for (folder, machine), records in swept.items():
        entries += _sweep(folder, machine, records)
    entries += [_comparison(Path(str(key[0])), of_rounds) for key, of_rounds in keys.items()]
    return Found(places=tuple(places), entries=tuple(entries), damaged=tuple(damaged))


def write(found: Found, folder: Path) -> Path:
    """Write the index and the pages of its studies and sweeps; raises `NotWrittenError`."""
    entries = [_drawn(each, folder) for each in _tracked(found.entries, "drawing pages")]
    text = render_sections(
        tuple(sections(replace(found, entries=tuple(entries)), folder)),
        title=f"Records in {', '.join(map(str, found.places))}",
        command="Made by python -m perf.report.",
    )
    return whole_file.write(folder / NAME, text)


def sections(found: Found, folder: Path) -> Iterator[Section]:
    """The number of results, a table per kind, and what is of other machines or damaged; `folder` has the page."""
    here = [each for each in found.entries if each.machine in (None, Machine.this())]
    others = [each for each in found.entries if each.machine not in (None, Machine.this())]
    yield _summary(found, here)
    for number_, name in enumerate(GROUPS):
        if entries := [each for each in here if each.group == name]:
            yield Section(name=f"kind-{number_}", title=name, grids=(_grid(entries, folder),))
    if others:
        sentence = "Not comparable with those of this machine. They are no base for a decision here."
        grid = _grid(others, folder, machines=True)
        yield Section(name="others", title="Records of other machines", sentences=(sentence,), grids=(grid,))
    if found.damaged:
        grid = Grid(titles=("file", "what is wrong with it"), rows=found.damaged, left=2, cards=True)
        yield Section(name="damaged", title="Files that cannot be read", grids=(grid,))


def _summary(found: Found, here: Sequence[Entry]) -> Section:
    title = f"{count(len(here), 'result')} of this machine" if here else "No records here yet"
    missing = () if here else ("Measure first: make demo, make measure MODEL=ranker, or make tune MODEL=ranker.",)
    sentences = (f"This machine: {Machine.this()}.",)
    return Section(name="index", title=title, sentences=sentences, missing=missing)


def _grid(entries: Sequence[Entry], folder: Path, *, machines: bool = False) -> Grid:
    order = sorted(entries, key=lambda each: each.started_at, reverse=True)
    order.sort(key=lambda each: each.model)
    titles = ("model", "what", "verdict", *(["machine"] if machines else []), "measured (UTC)")
    rows = tuple(
        (
            each.model,
            _link(each, folder),
            each.verdict,
            *([str(each.machine)] if machines else []),
            each.started_at[:16].replace("T", " ") or "unknown",
        )
        for each in order
    )
    return Grid(titles=titles, rows=rows, left=len(titles), cards=True)


def _link(entry: Entry, folder: Path) -> str:
    if entry.page is None:
        return entry.what
    page = folder / entry.page if entry.draw else entry.page
    return Link(entry.what, urllib.parse.quote(Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix()))


def _drawn(entry: Entry, folder: Path) -> Entry:
    """The entry once its page is written; without a page if that cannot be drawn."""
    if entry.draw is None or entry.page is None:
        return entry
    try:
        text = entry.draw()
    except Exception as error:
        return replace(entry, page=None, draw=None, verdict=f"{entry.verdict}; no page: {_sentence(error, entry.page)}")
    whole_file.write(folder / entry.page, text)
    return entry


def _page_name(folder: Path, name: str, *apart: object) -> Path:
    """The name of the page of records in a folder; those that are `apart` never share one."""
    unique = file.digest(str(folder.resolve()), name, apart)
    return Path(f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:LONGEST]}.{unique}.html")


def _sweep(folder: Path, machine: Machine, found: Sequence[Swept]) -> Iterator[Entry]:
    """An entry for each model in the sweeps of a folder and machine; they share a page."""
    entries = tuple(each for each in found if not isinstance(each, BatchTimeline))
    timelines = tuple(each for each in found if isinstance(each, BatchTimeline))
    problem, said = "", {}
    try:
        comparisons = compare(entries)
        said = {each.model: advice(each) for each in comparisons}
        summary = command.Summary(folder=folder, entries=entries, comparisons=comparisons, timelines=timelines)
    except Exception as error:
        problem = _sentence(error, folder)
    models: dict[str, list[Swept]] = defaultdict(list)
    for swept in found:
        models[_about(swept).model].append(swept)
    for model, of_model in sorted(models.items()):
        points = [each.point for each in of_model if isinstance(each, Measurement)]
        names = ", ".join(sorted({point.config_name for point in points}))
        drawable = bool(said) and not problem
        yield Entry(
            group=SWEEPS,
            model=model,
            what=names or "ceiling or timeline",
            verdict=said.get(model, problem or "no measured point"),
            started_at=max(each.started_at for each in of_model),
            machine=machine,
            page=_page_name(folder, folder.name, machine) if drawable else None,
            draw=(lambda: command.page(summary)) if drawable else None,
        )


def _study(path: Path) -> Entry:
    evidence = Evidence.read(path)
    found = evidence.study
    return Entry(
        group=STUDIES,
        model=found.model,
        what=f"{found.config_name}, {found.load}, {found.target.percent:g} % within {found.target.latency_ms:g} ms",
        verdict=headline(evidence),
        started_at=found.started_at,
        machine=found.machine,
        page=_page_name(path.parent, path.stem),
        draw=lambda: study_page(evidence, study_sections(evidence)),
    )


def _load(path: Path) -> Entry:
    found = file.read(path, LoadRecord)
    p99, outcome = found.p99, found.outcome
    latency = "p99 unknown" if p99 is None else f"p99 {ms(p99.value_ms)}"
    if p99 is not None:
        latency += f" (95 %: {number(p99.low_ms)} to {number(p99.high_ms)})"
    faults = f"; do not trust it: {'; '.join(found.faults)}" if found.faults else ""
    return Entry(
        group=LOADS,
        model=found.model,
        what=f"{found.config_name or 'config'}, {found.load.title}, {found.transport}",
        verdict=f"{number(outcome.rows_per_s)} rows/s in {outcome.window_s:.0f} s, {latency}{faults}",
        started_at=found.started_at,
        machine=found.machine,
    )


def _comparison(folder: Path, keys: Sequence[TrialKey]) -> Entry:
    """An entry for the rounds of a comparison; perf.compare alone says whether two configurations differ."""
    names = sorted({key.name for key in keys})
    sides = " ".join(f"{folder}:{name}" for name in names)
    done = count(len({key.round for key in keys}), "round")
    return Entry(
        group=ROUNDS,
        model=keys[0].model,
        what=f"{' beside '.join(names)}, {keys[0].load}",
        verdict=f"{done} of {' and '.join(names)}; they differ or not: triton-batching compare {sides}",
        machine=keys[0].machine,
    )


def _service(path: Path) -> Entry:
    found = service_profile.load(path)
    largest = found.max_batch_size
    threads = "threads as configured" if found.threads is None else count(found.threads, "thread")
    return Entry(
        group=SERVICE,
        model=found.model,
        what=f"{found.config_name}, {count(found.instances, 'instance')}, {threads}",
        verdict=f"one row alone {ms(found.alone_us / 1e3)}, {largest} rows {ms(found.table_us[largest] / 1e3)}",
        started_at=found.started_at,
        machine=found.machine,
    )


class _Facts(msgspec.Struct):
    """What most records say of their making, whatever their kind."""

    kind: str
    model: str = ""
    machine: Machine | None = None
    started_at: str = ""
    decision: dict[str, str] | None = None
    lines: list[dict[str, Any]] = []


def _other(path: Path) -> Entry:
    """An entry for a record of any other kind, with the page that its program wrote beside it."""
    found = file.convert(msgspec.json.decode(path.read_bytes()), _Facts, path)
    decided = found.decision
    said = [f"{decided['word']}: {decided['reason']}"] if decided else []
    said += [f"{each['quantity']}: {each['verdict']}, B / A {number(each['ratio']['value'])}" for each in found.lines]
    beside = path.with_suffix(".html")
    return Entry(
        group=OTHERS,
        model=found.model or "-",
        what=path.name,
        verdict="; ".join(said) or found.kind,
        started_at=found.started_at,
        machine=found.machine,
        page=beside if beside.is_file() else None,
    )


READERS: Mapping[str, Callable[[Path], Entry]] = {
    Study.KIND: _study,
    LoadRecord.KIND: _load,
    ServiceTimes.KIND: _service,
}


def _about(swept: Swept) -> Any:
    return swept.point if isinstance(swept, Measurement) else swept


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for parent, folders, names in os.walk(place):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".json") and name[0] != ".")


def _check(path: Path) -> None:
    """Raise `Mistake` for what cannot be read to its end, or whose name a page cannot show."""
    if os.fsencode(path).decode(errors="backslashreplace") != str(path):
        raise Mistake("its name is not UTF-8, which a page cannot show. Rename it.")
    if path.exists() and not path.is_file():
        raise Mistake("a pipe or a device, not a file. Remove it.")


def _sentence(error: Exception, path: Path) -> str:
    """What is wrong with records, without their `path`; a record has its types, and yet any value."""
    if isinstance(error, Mistake):
        return str(error).removeprefix(f"{path}: ")
    return f"its values do not fit together ({error!r}). {file.REMEDY}"


def _tracked(items: Sequence[Any], what: str) -> Iterable[Any]:
    hidden = not sys.stderr.isatty()
    return track(items, what, transient=True, console=Console(stderr=True), disable=hidden)
