"""Renders the pages from the jinja2 templates of this folder."""

from pathlib import Path

import jinja2


def render(template: str, **values: object) -> str:
    """The text of a page with escaped values; a value that the template needs and does not get is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
