"""A line of the index: one record, or all records of one sweep."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perf.records import file
from triton_batching.machine import Machine

# A file's name has at most 255 bytes; that of a page has more around the name of its record.
LONGEST = 100


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the index says of some records that belong together, and what draws their page.

    `machine` is None for results that were computed. `stale` are the changes since then. `problem` says why there is no
    page, if one cannot be drawn. `placed` is a page that the program which made the record wrote beside it. `apart` is
    what the records have in common that others of their group and folder have not; empty if they are all of their
    machine there. `beside` are further files that the page shows.
    """

    group: str
    model: str
    what: str
    verdict: str
    sources: tuple[Path, ...]
    started_at: str = ""
    machine: Machine | None = None
    stale: tuple[str, ...] = ()
    draw: Callable[[], str] | None = None
    problem: str = ""
    placed: Path | None = None
    apart: tuple[str, ...] = ()
    beside: tuple[Path, ...] = ()

    @property
    def page_name(self) -> str:
        """The name of the page; places, machines, groups and comparisons never share one."""
        first = self.sources[0]
        name = first.stem if len(self.sources) == 1 else first.parent.name
        unique = file.digest(str(first.parent.resolve()), name, self.machine, self.group, self.apart)
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:LONGEST]}.{unique}.html"

    @property
    def date(self) -> str:
        """The date and the minute of the start, in UTC; empty for results that do not depend on time."""
        return self.started_at[:16].replace("T", " ")
