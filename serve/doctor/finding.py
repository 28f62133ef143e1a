"""What the doctor says: a place in a file, what is wrong there, how bad it is and the edits that would mend it."""

import enum
from dataclasses import dataclass
from pathlib import Path


class Severity(enum.IntEnum):
    """How bad: an error is refused by the server or fails requests, a warning costs, an info is worth knowing."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """The name in small letters, as `--fail-on` takes it."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True, order=True)
class Position:
    """A place: `line` and `column` count from 1; a folder or a binary file has line 1, column 1."""

    path: Path
    line: int = 1
    column: int = 1


@dataclass(frozen=True, kw_only=True, order=True)
class Edit:
    """Put `text` in the place of the file's text from offset `start` to before `end` (in characters)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Found:
    """What a rule yields: where, what was found and what to do, and edits of that file that are safe to apply.

    `message` is one line in the house's form: what was found, what it means, what to do. The file is not named in it.
    """

    at: Position
    message: str
    fix: tuple[Edit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule's `Found` with the code and the severity of the rule; `model` is None for the repository itself."""

    code: str
    severity: Severity
    at: Position
    message: str
    model: str | None = None
    fix: tuple[Edit, ...] = ()
