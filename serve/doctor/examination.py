"""Runs the rules over a repository: every finding that no comment silences, in the order of files and lines."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from serve.doctor.document import Document
from serve.doctor.finding import Finding, Found, Position
from serve.doctor.repository import Configuration, Model, Repository
from serve.doctor.rule import Rule
from serve.doctor.source import Source
from serve.doctor.suppress import Suppressions, silence, suppressions


def examine(
    repository: Repository, rules: Iterable[Rule], *, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Every finding of `rules`; those of a rule that itself fails are one finding that says so."""
    chosen = list(rules)
    found = list(_apply(chosen, Repository, [repository], None))
    for model in repository.models:
        progress(model.name)
        found += _examine_model(model, chosen)
    return sorted(set(found), key=lambda one: (one.at, one.code, one.message))


def _examine_model(model: Model, rules: list[Rule]) -> list[Finding]:
    found = [
        *_apply(rules, Model, [model], model),
        *_apply(rules, Document, model.documents, model),
        *_apply(rules, Configuration, model.configurations, model),
        *_apply(rules, Source, model.sources, model),
    ]
    texts = [*model.documents, *(source.document for source in model.sources)]
    comments = {text.path: suppressions(text) for text in texts}
    kept = silence(found, [comment for those in comments.values() for comment in those])
    selected = frozenset(rule.code for rule in rules)
    files = [Suppressions(path=path, comments=those, selected=selected) for path, those in comments.items() if those]
    return kept + list(_apply(rules, Suppressions, files, model))


def _apply(rules: list[Rule], scope: type, subjects: Iterable[object], model: Model | None) -> Iterator[Finding]:
    known = list(subjects)
    for rule in rules:
        if rule.scope is scope:
            for subject in known:
                yield from apply(rule, subject, model)


def apply(rule: Rule, subject: object, model: Model | None) -> Iterator[Finding]:
    """What one rule finds in one subject."""
    try:
        found = list(rule.check(subject))
    except OSError as error:  # missing permissions, for the most part
        where = Position(path=Path(error.filename)) if isinstance(error.filename, str) else _whereabouts(subject)
        found = [Found(where, f"cannot be looked at ({error.strerror}), so this could not be checked. Permit it.")]
    # A rule that fails must not cost the findings of the others; the tests allow no such finding.
    except Exception as error:
        found = [Found(_whereabouts(subject), f"the rule itself failed here ({error!r}). Please report it.")]
    for one in found:
        yield Finding(
            code=rule.code,
            severity=rule.severity,
            at=one.at,
            message=printable(one.message),
            model=model.name if model is not None else None,
            fix=one.fix,
        )


def printable(text: str) -> str:
    """The text in one line that every terminal and file can hold: names on disk may be any bytes."""
    text = text.encode(errors="replace").decode()
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def _whereabouts(subject: object) -> Position:
    match subject:
        case Configuration():
            return Position(path=subject.document.path)
        case Model():
            return Position(path=subject.folder)
        case Document() | Source() | Repository() | Suppressions():
            return Position(path=subject.path)
    return Position(path=Path())
