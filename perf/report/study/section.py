"""A part of the page: what was found in sentences, figures and tables, and what is missing, never left out silently."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure with a caption that states the finding; `name` is fit for a file. `wide` ones take the whole width."""

    name: str
    caption: str
    figure: Figure
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table: the first `left` columns are words. `summary` not empty: folded under it."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    summary: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Text to read or copy as it is; `difference`: its lines begin with +, - or a space."""

    title: str
    text: str
    difference: bool = False

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Every line with its kind: added, removed, or empty."""
        kinds = {"+": "added", "-": "removed"} if self.difference else {}
        headers = ("+++ ", "--- ")
        return tuple(
            ("" if line.startswith(headers) else kinds.get(line[:1], ""), line) for line in self.text.splitlines()
        )


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part. `data` holds its derived figures for the JSON file; `missing` says what the records lack for it."""

    name: str
    title: str
    banner: str = ""
    sentences: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    grids: tuple[Grid, ...] = ()
    listings: tuple[Listing, ...] = ()
    data: Mapping[str, object] = field(default_factory=dict)
