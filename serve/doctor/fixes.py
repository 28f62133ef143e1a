"""Applies the safe edits of findings to the texts until no rule has another one.

Comments, order and formatting stay as they are.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.document import Document
from serve.doctor.examination import examine
from serve.doctor.finding import Edit, Finding
from serve.doctor.repository import Repository
from serve.doctor.rule import Rule
from triton_batching.terminal import Mistake

MOST_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Change:
    """One file before and after; `codes` are the rules whose findings were fixed."""

    path: Path
    before: str
    after: str
    codes: tuple[str, ...]

    def diff(self) -> str:
        """A unified diff that `patch -p0` takes."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            fromfile=str(self.path),
            tofile=str(self.path),
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Write the new text into the file; raises `Mistake`."""
        try:
            self.path.write_bytes(self.after.encode())
        except OSError as error:
            raise Mistake(f"{self.path}: cannot be written ({error.strerror}), so it stays as it was.") from error


def changes(repository: Repository, rules: Iterable[Rule]) -> list[Change]:
    """The changes of all safe edits; nothing is written."""
    rules, texts, codes = list(rules), dict[Path, str](), dict[Path, set[str]]()
    for _ in range(MOST_ROUNDS):
        edited = False
        for path, findings in _fixable(examine(replace(repository, texts=dict(texts)), rules)).items():
            before = texts[path] if path in texts else Document.read(path).text
            after, fixed = _edited(before, findings)
            if after != before and _no_worse(before, after):
                texts[path], edited = after, True
                codes.setdefault(path, set()).update(fixed)
        if not edited:
            break
    return [
        Change(path=path, before=Document.read(path).text, after=after, codes=tuple(sorted(codes[path])))
        for path, after in sorted(texts.items())
    ]


def _fixable(findings: Iterable[Finding]) -> dict[Path, list[Finding]]:
    by_file: dict[Path, list[Finding]] = {}
    for finding in findings:
        if finding.fix:
            by_file.setdefault(finding.at.path, []).append(finding)
    return by_file


def _edited(text: str, findings: Iterable[Finding]) -> tuple[str, list[str]]:
    """The text with the edits of those findings that do not overlap, and their codes."""
    taken: list[Edit] = []
    codes = []
    for finding in findings:
        if not any(_touch(edit, other) for edit in finding.fix for other in taken):
            taken += finding.fix
            codes.append(finding.code)
    for edit in sorted(taken, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, codes


def _touch(edit: Edit, other: Edit) -> bool:
    return edit.start <= other.end and other.start <= edit.end


def _no_worse(before: str, after: str) -> bool:
    """Whether the new text can be parsed, if the old one could."""
    return _valid(after) or not _valid(before)


def _valid(text: str) -> bool:
    try:
        text_format.Parse(text, ModelConfig())
    except (text_format.ParseError, ValueError, RecursionError):
        return False
    return True
