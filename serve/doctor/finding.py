"""What the doctor reports: a place in a file, the problem there, its severity and the edits that would fix it."""

import enum
from dataclasses import dataclass
from pathlib import Path


class Severity(enum.IntEnum):
    """Errors are refused by the server or fail requests, warnings cost speed or memory, infos are worth knowing."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """The name in lower case, as `--fail-on` takes it."""
        return self.name.lower()


LEVELS = {severity.word: severity for severity in Severity}


@dataclass(frozen=True, kw_only=True, order=True)
class Position:
    """A place: `line` and `column` count from 1; a folder or a binary file has line 1, column 1."""

    path: Path
    line: int = 1
    column: int = 1


@dataclass(frozen=True, kw_only=True, order=True)
class Edit:
    """Replaces the file's text from offset `start` to before `end` (in characters) by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Problem:
    """What a rule yields: the place, a message, and edits of that file that are safe to apply.

    `message` is one line: what was found, what it means, what to do. It does not name the file.
    """

    at: Position
    message: str
    fix: tuple[Edit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule's `Problem` with the rule's code and severity.

    `model` is None for the repository itself. `also_in` are other configurations of the model with this finding, see
    `once_per_model`.
    """

    code: str
    severity: Severity
    at: Position
    message: str
    model: str | None = None
    fix: tuple[Edit, ...] = ()
    also_in: tuple[Path, ...] = ()
