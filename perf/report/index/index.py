"""The index page: every record below some folders, by kind and model, with what is stale and a link to its page."""

import os
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perf.records import file
from perf.records.kinds import KINDS
from perf.records.round_record import TrialKey
from perf.report.index import fault, pages, readers
from perf.report.index.entry import Entry
from perf.report.index.pages import Track
from perf.report.index.present import Present
from perf.report.page import render_sections
from perf.report.section import Grid, Link, Section
from perf.report.units import count
from triton_batching import whole_file
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

# Where the programs write their records.
PLACES = tuple(map(Path, ("perf/results", "build/load", "build/versus", "build/compare.json", "build/packed")))
# The folder of the page of these places.
OUT = Path("build/report")
NAME = "index.html"
# Files beside records that are none: what a page was drawn from, and what a comparison has seen.
BESIDE = frozenset({"study figures", "looks"})


@dataclass(frozen=True, kw_only=True)
class Found:
    """The records of some places, what could not be read, and how many JSON files are no records."""

    places: tuple[Path, ...]
    entries: tuple[Entry, ...]
    damaged: tuple[tuple[Path, str], ...]
    strange: int = 0


def find(places: Sequence[Path], present: Present, track: Track = lambda paths, _: paths) -> Found:
    """Read all records; a file that cannot be read is `damaged` and ends nothing."""
    paths = sorted({path for place in places for path in _files(place)})
    entries: list[Entry] = []
    swept: dict[Path, readers.Swept] = {}
    keys: dict[Path, TrialKey] = {}
    damaged, strange = [], 0
    for path in track(paths, "reading records"):
        try:
            if name := _unprintable(path):
                damaged.append((name, "its name is not UTF-8, which a page cannot show. Rename it."))
                continue
            _check_file(path)
            kind = file.kind_of(path)
            if not kind:
                file.check_json(path)
            if kind in readers.SWEPT:
                swept[path] = readers.load_swept(path)
            elif kind == readers.KEYED:
                keys[path] = readers.round_key(path)
            elif kind in readers.READERS:
                entries.append(readers.READERS[kind](path, present))
            elif kind in KINDS and kind not in BESIDE:
                entries.append(readers.other(path, kind, present))
            else:
                strange += kind not in BESIDE
        except Exception as error:
            damaged.append((path, fault.sentence(error, path)))
    for together, read in (*readers.sweeps(swept), *readers.rounds(keys)):
        try:
            entries += read(present)
        except Exception as error:
            damaged += [(path, fault.sentence(error, path)) for path in together]
    return Found(places=tuple(places), entries=tuple(entries), damaged=tuple(damaged), strange=strange)


def write(found: Found, folder: Path, track: Track = lambda paths, _: paths) -> Path:
    """Write the index and the pages that are not of these records any more; raises `NotWrittenError`."""
    shown = replace(found, entries=pages.draw(found.entries, folder, track))
    text = render_sections(
        tuple(sections(shown, folder)),
        title=f"Records in {', '.join(map(str, found.places))}",
        command="Made by python -m perf.report. Pages are drawn again when their records change.",
    )
    return whole_file.write(folder / NAME, text)


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for parent, folders, names in os.walk(place):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".json") and name[0] != ".")


def _unprintable(path: Path) -> Path | None:
    """The path with escapes in place of bytes that are not UTF-8; None if it has none."""
    name = os.fsencode(path).decode(errors="backslashreplace")
    return None if name == str(path) else Path(name)


def _check_file(path: Path) -> None:
    """Raise `Mistake` for what cannot be read to its end."""
    if path.exists() and not path.is_file():
        raise Mistake("a pipe or a device, not a file. Remove it.")


def sections(found: Found, folder: Path) -> Iterator[Section]:
    """The verdict, a table per kind, and what is of other machines or damaged; `folder` is that of the page."""
    here = [each for each in found.entries if each.machine in (None, Machine.this())]
    others = [each for each in found.entries if each.machine not in (None, Machine.this())]
    yield _verdict(found, here, others)
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in here:
        groups[entry.group].append(entry)
    for number, name in enumerate(readers.GROUPS):
        if entries := groups.get(name):
            yield Section(name=f"kind-{number}", title=name, grids=(_grid(entries, folder),))
    if others:
        sentence = "Not comparable with those of this machine. They are no base for a decision here."
        grid = _grid(others, folder, machines=True)
        yield Section(name="others", title="Records of other machines", sentences=(sentence,), grids=(grid,))
    if found.damaged:
        rows = tuple((str(path), text) for path, text in found.damaged)
        grid = Grid(titles=("file", "what is wrong with it"), rows=rows, left=2, cards=True)
        yield Section(name="damaged", title="Files that cannot be read", grids=(grid,))


def _verdict(found: Found, here: Sequence[Entry], others: Sequence[Entry]) -> Section:
    stale = sum(bool(each.stale) for each in here)
    title = f"{count(len(here), 'result')} of this machine, {stale} of them stale" if here else "No records here yet"
    unnamed = sum(each.machine is None for each in here)
    absent = [place for place in found.places if not place.exists()]
    empty = [place for place in found.places if place.exists() and not any(_files(place))]
    missing = [f"{place} does not exist." for place in absent if not found.entries]
    missing += [f"{place} is empty: it has no records (*.json)." for place in empty]
    if not here:
        missing.append("Measure first: make demo, make measure MODEL=ranker, or make tune MODEL=ranker.")
    sentences = (
        f"This machine: {Machine.this()}.",
        "Stale: the model file, the configuration or a version has changed since the record was made." if here else "",
        f"{unnamed} of them: computed, or without the name of a machine." if unnamed else "",
        f"{count(len(others), 'result')} of other machines, below." if others else "",
        f"{count(len(found.damaged), 'file')} cannot be read, see below." if found.damaged else "",
        f"{count(found.strange, 'JSON file')} beside them: no records." if found.strange else "",
    )
    return Section(name="index", title=title, sentences=tuple(filter(None, sentences)), missing=tuple(missing))


def _grid(entries: Sequence[Entry], folder: Path, *, machines: bool = False) -> Grid:
    order = sorted(entries, key=lambda each: each.started_at, reverse=True)
    order.sort(key=lambda each: each.model)
    titles = ("model", "what", "verdict", "stale", *(["machine"] if machines else []), "measured (UTC)")
    rows = tuple(
        (
            each.model,
            _link(each, folder),
            "; ".join(filter(None, (each.verdict, each.problem))),
            "; ".join(each.stale) or "no",
            *([_differences(each.machine)] if machines and each.machine else []),
            each.date or "unknown",
        )
        for each in order
    )
    return Grid(titles=titles, rows=rows, left=len(titles), cards=True)


def _differences(machine: Machine) -> str:
    """A machine, and what of it is not as on this one."""
    here = Machine.this()
    names = [name for name, value in vars(machine).items() if replace(here, **{name: value}) != here]
    return f"{machine}; here are other: {', '.join(name.replace('_', ' ') for name in names)}"


def _link(entry: Entry, folder: Path) -> str:
    if entry.placed:
        address = Path(os.path.relpath(entry.placed.resolve(), folder.resolve())).as_posix()
        return Link(entry.what, urllib.parse.quote(address))
    return Link(entry.what, entry.page_name) if entry.draw else entry.what
