"""Runs the rules over a repository and returns the findings that no comment silences, sorted by file and line."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from serve.doctor.configuration import Configuration, Source
from serve.doctor.document import Document
from serve.doctor.finding import Finding, Position, Problem
from serve.doctor.repository import Model, Repository
from serve.doctor.rule import Rule
from serve.doctor.suppress import Suppressions, silence, suppressions

# A number by itself; x1 and "1" are names.
NUMBER = re.compile(r'(?<![\w"])\d[\d.,]*(?![\w"])')
# A message names so many variants; of more it gives the count.
NAMED_VARIANTS = 4


def examine(
    repository: Repository, rules: Iterable[Rule], *, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Every finding of `rules` in every file; `progress` is called with each model's name.

    A rule that raises gives one finding that says so.
    """
    rules = list(rules)
    findings = list(_apply(rules, Repository, [repository], None))
    for model in repository.models:
        progress(model.name)
        findings += examine_model(model, rules)
    return sorted(set(findings), key=order)


def order(finding: Finding) -> tuple[Position, str, str]:
    """The key by which findings are sorted: file, line, code."""
    return finding.at, finding.code, finding.message


def once_per_model(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with those that several configurations of a model share joined into one.

    Two files share a finding if rule and message are the same; numbers in the message may differ. The joined finding
    stands in the first of the files, its message names the variants and `also_in` holds the other files.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    seen = Counter[tuple[object, ...]]()
    for finding in sorted(findings, key=order):
        subject = (finding.model, finding.code, NUMBER.sub("#", finding.message))
        # A file may have several findings of this text: the first belongs to the first in the next file, and so on.
        number = seen[*subject, finding.at.path]
        seen[*subject, finding.at.path] += 1
        place = None if finding.at.path.suffix == ".pbtxt" else finding.at
        groups.setdefault((*subject, number, place), []).append(finding)
    return sorted((_joined(group) for group in groups.values()), key=order)


def _joined(group: list[Finding]) -> Finding:
    first, *others = group
    if not others:
        return first
    variants = [finding.at.path.stem for finding in group if finding.at.path.name != "config.pbtxt"]
    names = ", ".join(variants[:NAMED_VARIANTS]) + (", ..." if len(variants) > NAMED_VARIANTS else "")
    files = f"{len(variants)} variant{'s' * (len(variants) != 1)}: {names}"
    if len(variants) < len(group):
        files = f"config.pbtxt and {files}"
    return replace(
        first,
        message=f"{first.message} ({files})",
        also_in=tuple(finding.at.path for finding in others),
        fix=next((finding.fix for finding in group if finding.fix), ()),
    )


def examine_model(model: Model, rules: list[Rule]) -> list[Finding]:
    """The findings of `rules` in the files of one model that no comment silences."""
    findings = [
        *_apply(rules, Model, [model], model),
        *_apply(rules, Document, model.documents, model),
        *_apply(rules, Configuration, model.configurations, model),
        *_apply(rules, Source, model.sources, model),
    ]
    texts = [*model.documents, *(source.document for source in model.sources)]
    comments = {text.path: suppressions(text) for text in texts}
    remaining = silence(findings, [comment for file in comments.values() for comment in file])
    selected = frozenset(rule.code for rule in rules)
    files = [Suppressions(path=path, comments=file, selected=selected) for path, file in comments.items() if file]
    return remaining + list(_apply(rules, Suppressions, files, model))


def _apply(rules: list[Rule], scope: type, subjects: Iterable[object], model: Model | None) -> Iterator[Finding]:
    subjects = list(subjects)
    for rule in rules:
        if rule.scope is scope:
            for subject in subjects:
                yield from apply(rule, subject, model)


def apply(rule: Rule, subject: object, model: Model | None) -> Iterator[Finding]:
    """The findings of one rule in one subject."""
    try:
        problems = list(rule.check(subject))
    except OSError as error:  # most often a missing permission
        place = Position(path=Path(error.filename)) if isinstance(error.filename, str) else _place(subject)
        problems = [Problem(place, f"cannot be read ({error.strerror}), so {rule.code} was not checked. Permit it.")]
    # A rule that fails must not cost the findings of the others; the tests allow no such finding.
    except Exception as error:
        problems = [Problem(_place(subject), f"the rule itself failed here ({error!r}). Please report it.")]
    for problem in problems:
        yield Finding(
            code=rule.code,
            severity=rule.severity,
            at=problem.at,
            message=printable(problem.message),
            model=model.name if model is not None else None,
            fix=problem.fix,
        )


def printable(text: str) -> str:
    """The text as one line without control characters; names on disk may hold any bytes."""
    text = text.encode(errors="replace").decode()
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def _place(subject: object) -> Position:
    match subject:
        case Configuration():
            return Position(path=subject.document.path)
        case Model():
            return Position(path=subject.folder)
        case Document() | Source() | Repository() | Suppressions():
            return Position(path=subject.path)
    return Position(path=Path())
