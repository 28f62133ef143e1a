"""Writes a text file as a whole or not at all."""

import contextlib
from pathlib import Path

from triton_batching.terminal import Mistake


class NotWrittenError(Mistake):
    """The folder cannot be written to; the text says what to do."""


def write(path: Path, text: str, *, remedy: str = "Name another folder.") -> Path:
    """Write `text` to the file in UTF-8, and make its folder; an old file stays until the new one is complete.

    Raises `NotWrittenError`, whose text ends with `remedy`, if the folder cannot be written to.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        return draft.rename(path)
    except OSError as error:
        raise NotWrittenError(f"{path.parent}: cannot be written to ({error.strerror}). {remedy}") from error
    finally:
        # A full disk and Ctrl-C leave an incomplete draft.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
