"""The offsets of every field of a text protobuf: names, values and braces.

It knows the grammar and no schema, and stops without a warning where the text stops being a protobuf: whether a file is
valid is what `google.protobuf.text_format` decides.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

# Deeper than any ModelConfig, shallower than Python's stack.
DEEPEST = 100
TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z0-9_.+-]+)
      | (?P<mark>[{}\[\]<>:,;/])""",
    re.VERBOSE,
)
CLOSING = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value: the text from offset `start` to before `end`; `fields` of a message, None for a scalar."""

    start: int
    end: int
    fields: tuple["Field", ...] | None

    @cached_property
    def named(self) -> dict[str, tuple["Field", list["Value"]]]:
        """By its name, the first occurrence of each field of a message and the values of all occurrences."""
        found: dict[str, tuple[Field, list[Value]]] = {}
        for field in self.fields or ():
            found.setdefault(field.name, (field, []))[1].extend(field.values)
        return found


@dataclass(frozen=True, kw_only=True)
class Field:
    """One occurrence of a field, from its name at offset `start` to before `end`; a list has any number of `values`."""

    name: str
    start: int
    end: int
    values: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Token:
    """One word, string or mark of the text."""

    text: str
    start: int
    end: int


class _Broken(Exception):  # noqa: N818 - it stays in this file
    """The text is no longer a protobuf here."""


def fields_of(text: str) -> tuple[Field, ...]:
    """The fields at the top level of `text`, up to the place where it stops being a protobuf."""
    reader = _Reader(list(tokens(text)))
    fields: list[Field] = []
    with suppress(_Broken, IndexError):  # the fields before that place are right
        reader.read_message(fields, None, depth=0)
    return tuple(fields)


def tokens(text: str) -> Iterator[Token]:
    """Words, strings and marks, without blanks and comments, up to the first other character."""
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            return
        if match.lastgroup != "blank":
            yield Token(text=match.group(), start=match.start(), end=match.end())
        at = match.end()


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of every comment."""
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:  # binary junk: skip it, so that no comment is lost
            at += 1
            continue
        if match.lastgroup == "blank" and match.group().startswith("#"):
            yield match.start(), match.group()
        at = match.end()


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def read_message(self, into: list[Field], closing: str | None, *, depth: int) -> None:
        """Read fields up to the mark `closing`, or to the end of the text."""
        if depth > DEEPEST:
            raise _Broken
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.text in (",", ";"):
                self.at += 1
            elif token.text == closing:
                return
            else:
                into.append(self._field(depth))

    def _field(self, depth: int) -> Field:
        name = self._next()
        if not (name.text[0].isalpha() or name.text[0] == "_"):
            raise _Broken
        if self.tokens[self.at].text == ":":
            self.at += 1
        values = tuple(self._list(depth)) if self.tokens[self.at].text == "[" else (self._value(depth),)
        return Field(name=name.text, start=name.start, end=self.tokens[self.at - 1].end, values=values)

    def _list(self, depth: int) -> Iterator[Value]:
        self.at += 1
        while self.tokens[self.at].text != "]":
            if self.tokens[self.at].text == ",":
                self.at += 1
            else:
                yield self._value(depth)
        self.at += 1

    def _value(self, depth: int) -> Value:
        first = self._next()
        if first.text in ("{", "<"):
            inner: list[Field] = []
            self.read_message(inner, CLOSING[first.text], depth=depth + 1)
            return Value(start=first.start, end=self._next().end, fields=tuple(inner))
        last = first
        if first.text[0] in "\"'":  # adjacent strings are one
            while self.at < len(self.tokens) and self.tokens[self.at].text[0] in "\"'":
                last = self._next()
        elif first.text == "-":
            last = self._next()
        elif first.text in CLOSING.values() or first.text in (":", ",", ";", "[", "/"):
            raise _Broken
        return Value(start=first.start, end=last.end, fields=None)

    def _next(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]
