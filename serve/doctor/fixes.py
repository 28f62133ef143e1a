"""Applies the safe edits of findings to the texts until no rule has another one.

Comments, order and formatting stay as they are.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.document import Document
from serve.doctor.examination import examine, examine_model
from serve.doctor.finding import Edit, Finding, Severity
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Rule
from serve.doctor.rules import all_rules
from triton_batching.terminal import Mistake

MOST_ROUNDS = 10
UNPARSED = "L001"
"""Other rules see nothing of a file with this finding."""
ERRORS = [rule for rule in all_rules() if rule.severity is Severity.ERROR]


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
    """The changes of all safe edits; nothing is written.

    An edit that makes an error in a model that loads is left out: a setting that was not read may be a wrong one.
    """
    mender = _Mender(repository=repository, rules=tuple(rules))
    for _ in range(MOST_ROUNDS):
        if not mender.mend():
            break
    return mender.changes()


@dataclass(kw_only=True)
class _Mender:
    """The new texts of files, and the codes of the rules whose findings were fixed in them.

    `ensembles` holds the names of each model and of the ensembles that run it.
    """

    repository: Repository
    rules: tuple[Rule, ...]
    texts: dict[Path, str] = field(default_factory=dict)
    codes: dict[Path, set[str]] = field(default_factory=dict)
    ensembles: dict[str, frozenset[str]] = field(default_factory=dict)

    def changes(self) -> list[Change]:
        return [
            Change(path=path, before=Document.read(path).text, after=after, codes=tuple(sorted(self.codes[path])))
            for path, after in sorted(self.texts.items())
        ]

    def mend(self) -> bool:
        """Fix the most urgent findings; False if nothing is left that can be fixed.

        What an error leaves in a file may be all that another rule reports, so the others wait for the next round.
        """
        fixable = [finding for finding in examine(self._with(self.texts), self.rules) if finding.fix]
        for _, urgent in groupby(sorted(fixable, key=_urgency), key=_urgency):
            if sum(self._fix(path, findings) for path, findings in _by_file(urgent)):
                return True
        return False

    def _fix(self, path: Path, findings: Sequence[Finding]) -> bool:
        """Apply the edits that are safe, in one go or one after the other; False if there are none."""
        before = self._text(path)
        taken = list(findings) if self._is_safe(path, findings) else []
        for finding in findings if not taken else ():
            if self._is_safe(path, [*taken, finding]):
                taken.append(finding)
        after, codes = _edited(before, taken)
        if after == before:
            return False
        self.texts[path] = after
        self.codes.setdefault(path, set()).update(codes)
        return True

    def _is_safe(self, path: Path, findings: Sequence[Finding]) -> bool:
        before, first = self._text(path), findings[0]
        after, _ = _edited(before, findings)
        if first.code == UNPARSED or first.model is None:
            return _valid(after) or not _valid(before)
        return _valid(after) and not self._breaks(first.model, {path: after})

    def _breaks(self, model: str, texts: dict[Path, str]) -> bool:
        """Whether these texts make errors in the model, or in an ensemble that runs it, that it loads without."""
        for name in self._ensembles(model):
            before = self._errors(name, {})
            is_loaded = not any(RULES[code].refused for code in before)
            if is_loaded and len(self._errors(name, texts)) > len(before):
                return True
        return False

    def _errors(self, model: str, texts: dict[Path, str]) -> list[str]:
        """The code of each error in a model with these further texts."""
        found = self._with(self.texts | texts).model(model)
        return [finding.code for finding in examine_model(found, ERRORS)] if found is not None else []

    def _ensembles(self, model: str) -> frozenset[str]:
        if model not in self.ensembles:
            self.ensembles[model] = frozenset(self.repository.with_ensembles([model]))
        return self.ensembles[model]

    def _with(self, texts: Mapping[Path, str]) -> Repository:
        return replace(self.repository, texts=dict(texts))

    def _text(self, path: Path) -> str:
        return self.texts[path] if path in self.texts else Document.read(path).text


def _urgency(finding: Finding) -> tuple[bool, int]:
    """Files that cannot be parsed come first, then errors."""
    return finding.code != UNPARSED, -finding.severity


def _by_file(findings: Iterable[Finding]) -> Iterator[tuple[Path, list[Finding]]]:
    def path(finding: Finding) -> Path:
        return finding.at.path

    for place, group in groupby(sorted(findings, key=path), key=path):
        yield place, list(group)


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


def _valid(text: str) -> bool:
    try:
        text_format.Parse(text, ModelConfig())
    except (text_format.ParseError, ValueError, RecursionError):
        return False
    return True
