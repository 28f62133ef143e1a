"""A file that is there whole or not at all."""

import contextlib
from pathlib import Path

from triton_batching.terminal import Mistake


class NotWrittenError(Mistake):
    """A folder that cannot be written to; the text names it and says what to do."""


def write(path: Path, text: str, *, remedy: str = "Name another folder.") -> Path:
    """Write a text file, in UTF-8, whose folder is made; what was there before stays until the new one is whole.

    Raises `NotWrittenError` where that cannot be, which ends with `remedy`.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        return draft.rename(path)
    except OSError as error:
        raise NotWrittenError(f"{path.parent}: cannot be written to ({error.strerror}). {remedy}") from error
    finally:
        # A full disk leaves half of it, and so does Ctrl-C.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
