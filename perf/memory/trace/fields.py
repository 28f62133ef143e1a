"""Values of foreign JSON and pickles, taken out with a type that is checked and an error that says where."""

from pathlib import Path
from typing import Any, TypeVar

from triton_batching.terminal import Mistake

T = TypeVar("T")


def field(of: Any, name: str, kind: type[T], where: str) -> T:
    """`of[name]`, which must be a `kind`; raises `Mistake`."""
    value = of.get(name) if isinstance(of, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        found = "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
        raise Mistake(f"{where}: '{name}' should be {kind.__name__}, found {found}: not a file that this reader knows.")
    return value


def content(path: Path, advice: str) -> bytes:
    """The bytes of a file; raises `Mistake`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Mistake(f"{path}: {error.strerror}. {advice}") from error
