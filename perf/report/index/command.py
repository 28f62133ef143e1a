"""Writes the index of a folder, or of all places where the programs write records."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from perf.report.index import index
from perf.report.index.present import Present
from triton_batching.terminal import Mistake, terminal


def run(folder: Path | None, out: Path | None, repository: Path) -> Path:
    """Write and print; the page. Raises `Mistake` for a folder that does not exist."""
    if folder is not None and not folder.exists():
        raise Mistake(f"{folder}: no such folder. Name one with records, or none for all of them.")
    places = index.PLACES if folder is None else (folder,)
    found = index.find(places, Present(repository), _bar)
    page = index.write(found, out or folder or index.OUT, _bar)
    console = terminal()
    console.print(f"{len(found.entries)} results, {len(found.damaged)} files that cannot be read", markup=False)
    console.print(f"written: {page}", markup=False)
    return page


def _bar(paths: Sequence[Path], what: str) -> Iterable[Path]:
    hidden = not sys.stderr.isatty()
    return track(paths, what, transient=True, console=Console(stderr=True), disable=hidden)
