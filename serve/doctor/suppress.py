"""Comments that silence the doctor: `# doctor: ignore=B204 reason`.

At the end of a line the comment silences findings of that line. On a line of its own it silences those of the whole
file, and in config.pbtxt those of the whole model: variants, folders and graphs, but not model.py. In config.pbtxt
`# doctor: ignore=B201 in=baseline reason` is for configs/baseline.pbtxt alone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from serve.doctor.document import Document
from serve.doctor.finding import Finding, Position
from serve.doctor.pbtxt import comments

COMMENT = re.compile(
    r"#\s*doctor:\s*ignore=(?P<codes>[A-Za-z0-9]+(?:\s*,\s*[A-Za-z0-9]+)*)"
    r"(?:\s+in=(?P<variant>\S+))?(?P<reason>.*)"
)


@dataclass(kw_only=True)
class Suppression:
    """One comment; `line` is None if it is for the whole file, `variant` is the only variant that it is for.

    `codes` are as the user wrote them; `used` are the codes of the rules that it silenced.
    """

    codes: tuple[str, ...]
    reason: str
    at: Position
    line: int | None
    variant: str | None = None
    used: set[str] = field(default_factory=set)

    def silences(self, finding: Finding) -> bool:
        """Whether the comment is meant for this finding."""
        if finding.code not in self.codes:
            return False
        if self.variant is not None:
            return finding.at.path == self.at.path.parent / "configs" / f"{self.variant}.pbtxt"
        if finding.at.path == self.at.path:
            return self.line in (None, finding.at.line)
        return self.line is None and self.at.path.name == "config.pbtxt" and finding.at.path.suffix != ".py"


@dataclass(frozen=True, kw_only=True)
class Suppressions:
    """The comments of one file, after every rule has run; `selected` are the codes of those rules."""

    path: Path
    comments: tuple[Suppression, ...]
    selected: frozenset[str]


def suppressions(document: Document) -> tuple[Suppression, ...]:
    """Every such comment of a file."""
    return tuple(_suppressions(document))


def _suppressions(document: Document) -> Iterable[Suppression]:
    for offset, text in comments(document.text) if "doctor" in document.text else ():
        if match := COMMENT.match(text):
            at = document.position(offset)
            alone = not document.text[offset - at.column + 1 : offset].strip()
            codes = tuple(code.strip().upper() for code in match["codes"].split(","))
            yield Suppression(
                codes=codes,
                reason=match["reason"].strip(),
                at=at,
                line=None if alone else at.line,
                variant=match["variant"],
            )


def silence(findings: Iterable[Finding], suppressions: Iterable[Suppression]) -> list[Finding]:
    """The findings that no comment silences; marks the comments that were used."""
    remaining, suppressions = [], list(suppressions)
    for finding in findings:
        matching = [comment for comment in suppressions if comment.silences(finding)]
        for comment in matching:
            comment.used.add(finding.code)
        if not matching:
            remaining.append(finding)
    return remaining
