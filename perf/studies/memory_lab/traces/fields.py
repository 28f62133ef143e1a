"""Values of JSON and pickles that other tools wrote, with checked types and errors that name the place."""

import json
from pathlib import Path
from typing import Any, TypeVar

from triton_batching.terminal import Mistake

T = TypeVar("T")


def content(path: Path, advice: str) -> bytes:
    """The bytes of a file; raises `Mistake` with `advice` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Mistake(f"{path}: {error.strerror}. {advice}") from error


def parsed(data: bytes, origin: str) -> Any:
    """The value of a JSON text; raises `Mistake` with line and column."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise Mistake(
            f"{origin}:{error.lineno}:{error.colno}: not JSON: {error.msg}. "
            "The file is incomplete or of another kind. Write it again."
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise Mistake(f"{origin}: not JSON: {error}. Write it again.") from error


def field(mapping: Any, name: str, kind: type[T], where: str) -> T:
    """`mapping[name]`, which must be a `kind`; raises `Mistake` otherwise."""
    value = mapping.get(name) if isinstance(mapping, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        actual = "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
        raise Mistake(
            f"{where}: '{name}' should be {kind.__name__}, is {actual}: this reader does not know the format."
        )
    return value
