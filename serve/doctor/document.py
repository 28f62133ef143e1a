"""One text file of a repository: its text, why it could not be read, and the place of every field."""

import errno
import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.finding import Edit, Position
from serve.doctor.pbtxt import Field, Value, fields_of

# The largest configurations, of ensembles, have a few hundred kB. A model.py may hold tables.
LARGEST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file's `text`. If it cannot be read, `trouble` says why and `trouble_at` is the offset.

    A file that does not exist has the text "" and no trouble.
    """

    path: Path
    text: str
    exists: bool = True
    trouble: str | None = None
    trouble_at: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a UTF-8 file; never raises."""
        try:
            if not path.is_file() and not os.path.lexists(path):
                return cls(path=path, text="", exists=False)
            # stat() raises where Path.is_file hides a loop of links.
            if not path.exists() or not path.is_file():
                path.stat()
                return cls(path=path, text="", trouble="is not a regular file")
            if (size := path.stat().st_size) > LARGEST_BYTES:
                return cls(path=path, text="", trouble=f"has {size / 1e6:.0f} MB, too many for a configuration")
            data = path.read_bytes()
        except OSError as error:
            return cls(path=path, text="", trouble=f"cannot be read ({os.strerror(error.errno or errno.EIO)})")
        try:
            return cls(path=path, text=data.decode())
        except UnicodeDecodeError as error:
            text = data.decode(errors="replace")
            at = len(data[: error.start].decode(errors="replace"))
            return cls(path=path, text=text, trouble="is not UTF-8 text", trouble_at=at)

    @cached_property
    def message(self) -> Value:
        """The whole file as a message, with its fields."""
        return Value(start=0, end=len(self.text), fields=fields_of(self.text))

    @cached_property
    def proto(self) -> ModelConfig | Exception:
        """The configuration in the file, or why it is none."""
        try:
            return text_format.Parse(self.text, ModelConfig())
        except (text_format.ParseError, ValueError, RecursionError) as error:
            return error

    def at(self, *steps: str | int) -> Position:
        """The position of a field or value: `at("input", 1, "dims")` is the name of the second input's dims.

        If the file lacks a step, the position is that of the step before, at last the top of the file. A name that no
        index follows stands for its first value.
        """
        path = self._walk(steps)
        return self.position(path[-1].start if path else 0)

    def has(self, *steps: str | int) -> bool:
        """Whether the file has this field or value; a default does not count."""
        return self._find(steps) is not None

    def field(self, *steps: str | int) -> Field | None:
        """The first occurrence of a field; None if the file lacks it or the last step is an index."""
        item = self._find(steps)
        return item if isinstance(item, Field) else None

    def value(self, *steps: str | int) -> Value | None:
        """The value of a field, the first one unless the last step is an index; None if there is none."""
        item = self._find(steps)
        if isinstance(item, Field):
            return item.values[0] if item.values else None
        return item

    def at_entry(self, name: str, key: str) -> Position:
        """The position of the entry `key` of the map `name`, for example of `parameters`; else of the map."""
        for index, value in enumerate(self.values(name)):
            for field in value.fields or ():
                if field.name == "key" and field.values and self.slice(field.values[0]).strip("\"'") == key:
                    return self.at(name, index)
        return self.at(name)

    def values(self, name: str) -> list[Value]:
        """Every value of a field at the top level, over all its occurrences."""
        return self.message.named[name][1] if name in self.message.named else []

    def slice(self, span: Field | Value) -> str:
        """The text of a field or a value."""
        return self.text[span.start : span.end]

    def position(self, offset: int) -> Position:
        """Line and column of an offset in the text."""
        line = bisect_right(self._line_starts, offset)
        return Position(path=self.path, line=line, column=offset - self._line_starts[line - 1] + 1)

    def offset(self, line: int, column: int) -> int:
        """The offset of a line and column that count from 1."""
        if line > len(self._line_starts):
            return len(self.text)
        return min(self._line_starts[max(line, 1) - 1] + max(column, 1) - 1, len(self.text))

    def replaced(self, text: str, *steps: str | int) -> tuple[Edit, ...]:
        """The edit that replaces a value by `text`; empty if the file lacks the value."""
        value = self.value(*steps)
        return (Edit(start=value.start, end=value.end, text=text),) if value is not None else ()

    def rewritten(self, text: str, *steps: str | int) -> tuple[Edit, ...]:
        """The edit that replaces a field with its name by `text`; empty if the file lacks it."""
        field = self.field(*steps)
        return (Edit(start=field.start, end=field.end, text=text),) if field is not None else ()

    def removed(self, *steps: str | int) -> tuple[Edit, ...]:
        """The edit that removes a field, with its line if nothing else is on it; empty if the file lacks it."""
        field = self.field(*steps)
        if field is None:
            return ()
        start, end = field.start, field.end
        while self.text[end : end + 1] in (" ", "\t", ",", ";"):
            end += 1
        before = self.text.rfind("\n", 0, start) + 1
        if not self.text[before:start].strip():
            if self.text[end : end + 1] == "\n":
                start, end = before, end + 1
            elif self.text[end : end + 2] == "\r\n":
                start, end = before, end + 2
        return (Edit(start=start, end=end, text=""),)

    def opened(self, text: str, *steps: str | int) -> tuple[Edit, ...]:
        """The edit that adds a text at the beginning of a message; empty if the file lacks the message."""
        value = self.value(*steps)
        return (Edit(start=value.start + 1, end=value.start + 1, text=f" {text}"),) if value is not None else ()

    def appended(self, line: str) -> tuple[Edit, ...]:
        """The edit that adds a line at the end of the file."""
        gap = "" if not self.text or self.text.endswith("\n") else "\n"
        return (Edit(start=len(self.text), end=len(self.text), text=f"{gap}{line}\n"),)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(index + 1 for index, character in enumerate(self.text) if character == "\n")]

    def _find(self, steps: tuple[str | int, ...]) -> Field | Value | None:
        path = self._walk(steps)
        return path[-1] if len(path) == len(steps) and path else None

    def _walk(self, steps: tuple[str | int, ...]) -> list[Field | Value]:
        """The field or value of each step, up to the last one that the file has."""
        walked: list[Field | Value] = []
        message: Value | None = self.message
        values: list[Value] = []
        for step in steps:
            if isinstance(step, int):
                if not 0 <= step < len(values):
                    break
                message = values[step]
                walked.append(message)
            elif message is None or step not in message.named:
                break
            else:
                field, values = message.named[step]
                message = values[0] if values else None
                walked.append(field)
        return walked
