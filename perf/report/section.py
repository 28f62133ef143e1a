"""The pieces of a page: a section has sentences, figures and tables, and always says what is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf.report.figure import Figure


class Link(str):
    """The text of a cell that leads to another page."""

    address: str

    def __new__(cls, text: str, address: str) -> "Link":
        """The text, with the address of the page."""
        link = super().__new__(cls, text)
        link.address = address
        return link


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table whose first `left` columns are text. With a `summary` the page shows only that until it is opened.

    On a phone the rows of `cards` are below each other, each value with its title: for tables of sentences.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    summary: str = ""
    cards: bool = False


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Text to read or copy. The lines of a `difference` begin with +, - or a space."""

    title: str
    text: str
    difference: bool = False

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each line with its kind: added, removed, or empty."""
        kinds = {"+": "added", "-": "removed"} if self.difference else {}
        headers = ("+++ ", "--- ")
        return tuple(
            ("" if line.startswith(headers) else kinds.get(line[:1], ""), line) for line in self.text.splitlines()
        )


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the page. `data` are its values for the JSON file; `missing` says what the records lack for it."""

    name: str
    title: str
    banner: str = ""
    sentences: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = ()
    listings: tuple[Listing, ...] = ()
    data: Mapping[str, object] = field(default_factory=dict)
