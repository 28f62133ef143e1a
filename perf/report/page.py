"""Renders the pages from the jinja2 templates of this folder, and writes files."""

from pathlib import Path

import jinja2

from triton_batching.terminal import Mistake


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


def write(path: Path, text: str) -> Path:
    """Write a file and create its folder; raises `Mistake` if that fails."""
    try:
        make_folder(path.parent).joinpath(path.name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(f"{path}: cannot be written ({error.strerror}). Name another folder.") from error
    return path


def make_folder(path: Path) -> Path:
    """Create a folder if it is absent; raises `Mistake` if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{path}: the folder cannot be created ({error.strerror}). Name another folder.") from error
    return path
