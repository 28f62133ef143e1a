"""Records on disk: one JSON file each, with its `kind` and `format`, read strictly into a type and written whole.

A type that is stored is a frozen dataclass or a `msgspec.Struct` that says what it is:

    @dataclass(frozen=True, kw_only=True)
    class Probe:
        KIND: ClassVar[str] = "probe"
        FORMAT: ClassVar[int] = 1
        rows: int
        latencies_us: tuple[float, ...]

`write(probe, path)` writes it and `read(path, Probe)` reads it back equal. Types are checked, nothing is converted but
a whole number to a float, and fields that the type does not have are ignored: raise FORMAT when a field changes its
meaning.
"""

import hashlib
import json
import math
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from triton_batching import whole_file
from triton_batching.terminal import Mistake

REMEDY = "Remove it and measure again."
# Fields whose numbers may be infinite, as a latency of a request without an answer is. JSON has null for it.
INFINITE = frozenset({"latencies_us", "latencies_ms", "percentiles_ms", "p99_interval"})
# The fields of an `Interval`, which has no upper end where there is too little to tell.
INTERVAL = frozenset({"value", "low", "high", "level"})
# How msgspec ends a message that names a place.
PLACE = re.compile(r"(?P<problem>.*?)(?: - at (?P<place>.*))?", re.DOTALL)
# What decoding raises for bytes that are no JSON, are not UTF-8, or are nested too deeply.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# Characters of a wrong value that a message shows.
SHOWN = 40


class RecordError(Mistake):
    """A file that is not the record it should be, or a folder that cannot be written to; the text is one line."""


class Stored(Protocol):
    """A dataclass or struct that has a file: the `kind` and the `format` that the file begins with."""

    KIND: ClassVar[str]
    FORMAT: ClassVar[int]


StoredType = TypeVar("StoredType", bound=Stored)
Value = TypeVar("Value")


class _Header(msgspec.Struct):
    kind: str = ""


def read(path: Path, record_type: type[StoredType], *, remedy: str = REMEDY) -> StoredType:
    """The record of a file.

    Raises `RecordError` for a file that cannot be read, is of another kind or format, or has a value of another type.
    Its text is one line: the file, the place in it, what was found there, and `remedy`.
    """
    content = _content(path, remedy)
    kind, version = content.pop("kind", None), content.pop("format", None)
    if kind != record_type.KIND:
        raise RecordError(other_kind(path, kind, f"of kind '{record_type.KIND}'"))
    if version != record_type.FORMAT:
        raise RecordError(
            f"{path}: its format is {version!r}, and this version reads format {record_type.FORMAT}. {remedy}"
        )
    return convert(content, record_type, path, remedy=remedy)


def convert(content: Any, record_type: type[Value], path: Path, *, remedy: str = REMEDY) -> Value:
    """Decoded JSON as a value of the type `record_type`, for files that are not one record; raises `RecordError`."""
    try:
        return msgspec.convert(
            _replaced(content, None, math.inf), record_type, str_keys=True, dec_hook=lambda kind, value: kind(value)
        )
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {_explained(str(error), content)}. {remedy}") from error
    except RecursionError as error:
        raise RecordError(f"{path}: nested too deeply. {remedy}") from error
    except Mistake as mistake:  # a value that its own type refuses
        raise RecordError(f"{path}: {mistake} {remedy}") from mistake


def write(value: Stored, path: Path, **derived: object) -> Path:
    """Write the record, whole or not at all, and return `path`; raises `RecordError` for a folder that is closed.

    `derived` are further fields for those who read the file without this package; `read` ignores them.
    """
    content = msgspec.to_builtins(value, str_keys=True, enc_hook=_encoded) | derived
    return write_content({"format": value.FORMAT, "kind": value.KIND, **content}, path)


def write_content(content: dict[str, Any], path: Path) -> Path:
    """Write JSON, whole or not at all, and return `path`; raises `RecordError` for a folder that is closed."""
    try:
        return whole_file.write(path, _text(_replaced(content, math.inf, None), 0) + "\n")
    except whole_file.NotWrittenError as error:
        raise RecordError(str(error)) from error


def check_folder(path: Path) -> None:
    """Make the folder of `--results`; raises `RecordError` if it cannot be written to, before there is work to lose."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise RecordError(f"--results {path}: cannot be written to ({error.strerror}). Name another folder.") from error


def digest(*parts: object) -> str:
    """The first six hex digits of the SHA-256 of the values as JSON; it makes the name of a record unique."""
    return hashlib.sha256(msgspec.json.encode(parts, enc_hook=_encoded)).hexdigest()[:6]


def json_text(content: object) -> str:
    """The JSON of any values; null stands for a number that is not finite."""
    text = msgspec.json.encode(content, enc_hook=_encoded)
    return msgspec.json.format(text, indent=1).decode() + "\n"


def kind_of(path: Path) -> str:
    """The `kind` that a file says it is, in whatever format; empty if it says none or is no JSON."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Header).kind
    except (OSError, *UNREADABLE):
        return ""


def check_json(path: Path) -> None:
    """Raise `RecordError` for a file that cannot be read or is no JSON."""
    try:
        msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}). Name a record.") from error
    except UNREADABLE as error:
        raise RecordError(f"{path}: not a record, since it is no JSON ({error}). {REMEDY}") from error


def other_kind(path: Path, kind: object, wanted: str) -> str:
    """One line for a record that is not the one that is `wanted`."""
    found = f"of kind '{kind}'" if isinstance(kind, str) and kind else "without a kind"
    return f"{path}: not a record {wanted} but one {found}. Name another file."


def start_time(started_at: str, path: Path) -> datetime:
    """The time that a record gives as its start, in UTC if it names no time zone; raises `RecordError`."""
    try:
        time = datetime.fromisoformat(started_at)
    except ValueError as error:
        raise RecordError(f"{path}: started_at {started_at!r}: not an ISO date and time. {REMEDY}") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _content(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}). Name a record.") from error
    except UNREADABLE as error:
        raise RecordError(f"{path}: not a record, since it is no JSON ({error}). {remedy}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path}: not a record, since it holds a {type(content).__name__}. {remedy}")
    return content


def _replaced(content: Any, old: float | None, new: float | None, inside: bool = False) -> Any:
    """The content with `new` in place of `old` in the fields of `INFINITE`, and at the upper ends of intervals."""
    if isinstance(content, dict):
        infinite = INFINITE | {"high"} if content.keys() >= INTERVAL else INFINITE
        return {name: _replaced(value, old, new, inside or name in infinite) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_replaced(value, old, new, inside) for value in content]
    return new if inside and content == old else content


def _encoded(value: Any) -> Any:
    if isinstance(value, float):  # numpy's
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a record cannot hold a {type(value).__name__}")


def _explained(message: str, content: Any) -> str:
    """What msgspec found wrong, with the place first and the value last."""
    parts = PLACE.fullmatch(message)
    if parts is None or parts["place"] is None:
        return message
    place = parts["place"].replace("`", "").replace("$.", "").replace("$", "")
    value = _value(content, place)
    shown = "" if value is None else f" {json.dumps(value)[:SHOWN]}"
    return f"{place}: {parts['problem']}{shown}"


def _value(content: Any, place: str) -> Any:
    """The value at a place such as `trials[3].seconds`; None if the place names no single value."""
    try:
        for step in re.findall(r"[^.\[\]]+|\[\.\.\.\]", place):
            content = content[int(step)] if isinstance(content, list) else content[step]
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return content


def _text(value: Any, indent: int) -> str:
    """JSON in which lists and objects of plain values are on one line, so that a person can read and compare it."""
    children = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if not any(isinstance(child, dict | list | tuple) for child in children):
        return json.dumps(value, allow_nan=False)
    texts = [_text(child, indent + 1) for child in children]
    if isinstance(value, dict):
        texts = [f"{json.dumps(name)}: {text}" for name, text in zip(value, texts, strict=True)]
    start, end = "{}" if isinstance(value, dict) else "[]"
    gap = "\n" + " " * indent
    return f"{start}{gap} " + f",{gap} ".join(texts) + f"{gap}{end}"
