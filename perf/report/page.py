"""Renders the pages from the jinja2 templates of this folder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from markupsafe import Markup

from perf.report.bundle import bundle
from perf.report.figure import Figure, Palette
from perf.report.section import Section

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The configurations that the figures of a page have in common, or what else their marks are sorted by (`what`).

    Those of the `palette` have a switch each. `others`, which have one colour together, are in a list.
    """

    palette: Palette
    others: Sequence[str] = field(default=())
    other_colour: str = ""
    what: str = "configurations"

    @property
    def names(self) -> frozenset[str]:
        """All configurations."""
        return frozenset((*self.palette.colours, *self.others))


def render(template: str, *, figures: Iterable[Figure] = (), script: str = "", **values: object) -> str:
    """The text of a page with escaped values; a value that the template needs and does not get is an error.

    A page without figures has no script. `script` is the file of one more, which comes last.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = tuple(figures)
    own = [(FOLDER / name).read_text() for name in ("explore.js", script) if name]
    scripts = (bundle(), *own) if drawn else ()
    return environment.get_template(template).render(figures=drawn, scripts=tuple(map(Markup, scripts)), **values)


def render_sections(sections: Sequence[Section], *, title: str, command: str, keys: Legend | None = None) -> str:
    """The text of a page of sections, of which the first is the verdict; `command` says how the page was made."""
    figures = [figure for section in sections for figure in section.figures]
    return render("sections.html.j2", title=title, sections=sections, figures=figures, keys=keys, command=command)
