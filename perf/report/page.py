"""A page of the reports: a jinja2 template of this folder, filled with escaped values; no script, no network."""

from pathlib import Path

import jinja2

from triton_batching.terminal import Mistake


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
    """Write a file; its folder is made. Raises `Mistake` where that cannot be."""
    try:
        make_folder(path.parent).joinpath(path.name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(f"{path}: cannot be written ({error.strerror}). Name another folder.") from error
    return path


def make_folder(path: Path) -> Path:
    """The folder, made where it is not there; raises `Mistake` where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{path}: no folder can be made there ({error.strerror}). Name another.") from error
    return path
