"""A page of the reports: a jinja2 template of this folder, filled with escaped values; no script, no network."""

from pathlib import Path

import jinja2


def render(template: str, **values: object) -> str:
    """The text of a page; equal values give equal text, and a value that the template lacks is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def write(path: Path, text: str) -> Path:
    """Write a file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
