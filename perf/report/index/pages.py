"""The pages of the entries: each is drawn again when its records or the code that draws it have changed."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from perf.report.index import fault
from perf.report.index.entry import Entry
from triton_batching import whole_file

Track = Callable[[Sequence[Path], str], Iterable[Path]]
PERF = Path(__file__).parents[2]
# Folders of perf that no page comes from.
APART = frozenset({"studies", "results", "__pycache__"})
BESIDE = (PERF.parent / "triton_batching", PERF.parent / "serve" / "management")
CODE = frozenset({".py", ".j2", ".js"})


def draw(entries: Iterable[Entry], folder: Path, track: Track = lambda paths, _: paths) -> tuple[Entry, ...]:
    """Draw the pages that are not of these records and this code; the entries, whose `problem` is why one failed.

    Raises `NotWrittenError`.
    """
    entries = tuple(entries)
    drawn = {folder / each.page_name: each for each in entries if each.draw}
    marks = {path: _mark(each) for path, each in drawn.items()}
    problems: dict[str, str] = {}
    for path in track([path for path, mark in marks.items() if not _has(path, mark)], "drawing pages"):
        if problem := _draw(path, drawn[path], marks[path]):
            problems[path.name] = f"no page: {problem}"
    return tuple(_without_page(each, problems) for each in entries)


def _draw(path: Path, entry: Entry, mark: str) -> str:
    """Write a page; why it could not be drawn, or nothing."""
    assert entry.draw is not None
    try:
        text = entry.draw()
    except Exception as error:
        return fault.sentence(error, entry.sources[0])
    whole_file.write(path, f"{text.rstrip()}\n{mark}")
    return ""


def _without_page(entry: Entry, problems: Mapping[str, str]) -> Entry:
    problem = problems.get(entry.page_name) if entry.draw else None
    return replace(entry, draw=None, problem=problem) if problem else entry


def _mark(entry: Entry) -> str:
    """The last line of a page: the digest of what it was drawn from."""
    content = [*map(_state, (*entry.sources, *entry.beside)), code()]
    return f"<!-- drawn from {hashlib.sha256(repr(content).encode()).hexdigest()} -->\n"


def _state(source: Path) -> tuple[str, int, int]:
    """A file as it is now; one that is gone has no size."""
    try:
        state = source.stat()
    except OSError:
        return str(source), -1, 0
    return str(source), state.st_size, state.st_mtime_ns


def _has(page: Path, mark: str) -> bool:
    """Whether a page ends with a mark; one that is absent or shorter does not."""
    try:
        with page.open("rb") as content:
            content.seek(-len(mark), os.SEEK_END)
            return content.read() == mark.encode()
    except OSError:
        return False


@cache
def code() -> str:
    """The digest of all code that a page may come from."""
    found = hashlib.sha256()
    for path in code_files():
        found.update(f"{path.relative_to(PERF.parent)} {path.stat().st_size} ".encode() + path.read_bytes())
    return found.hexdigest()


def code_files() -> Iterator[Path]:
    """What reads records, computes with them and draws them."""
    own = (each for each in PERF.iterdir() if each.is_dir() and each.name not in APART)
    for folder in sorted((*own, *BESIDE)):
        yield from sorted(path for path in folder.rglob("*") if path.suffix in CODE)
