"""Findings as text, as JSON, as SARIF 2.1.0 and as GitHub workflow commands, and the explanation of a rule."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from serve.doctor.examination import printable
from serve.doctor.finding import Finding, Severity
from serve.doctor.rule import RULES, Example, Rule

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
LANGUAGES = {".pbtxt": "protobuf", ".py": "python", ".onnx": "text"}
GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def as_text(findings: Sequence[Finding]) -> str:
    """One line for each finding, in the form of a compiler's messages, and the totals."""
    lines = [
        f"{_path(finding)}:{at.line}:{at.column}: {finding.severity.word} {finding.code}: {finding.message}"
        + (" (--fix fixes it)" if finding.fix else "")
        for finding in findings
        for at in (finding.at,)
    ]
    return "\n".join([*lines, _totals(findings)])


def as_json(findings: Sequence[Finding]) -> str:
    """`{"findings": [...]}`, with lines and columns that count from 1."""
    entries = [
        {
            "code": finding.code,
            "severity": finding.severity.word,
            "model": finding.model,
            "path": _path(finding),
            "line": finding.at.line,
            "column": finding.at.column,
            "message": finding.message,
            "fixable": bool(finding.fix),
            "also_in": [_shown(path) for path in finding.also_in],
        }
        for finding in findings
    ]
    return json.dumps({"findings": entries}, indent=2)


def as_sarif(findings: Sequence[Finding]) -> str:
    """A SARIF 2.1.0 log, for code scanning."""
    codes = sorted({finding.code for finding in findings})
    driver = {"name": "triton-batching doctor", "rules": [_sarif_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, codes.index(finding.code)) for finding in findings],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands that show each finding on its line of a pull request, and the totals."""
    lines = []
    for finding in findings:
        place = {"file": _path(finding), "line": finding.at.line, "col": finding.at.column, "title": finding.code}
        properties = ",".join(f"{key}={_escaped(str(value), in_property=True)}" for key, value in place.items())
        lines.append(f"::{GITHUB_LEVELS[finding.severity]} {properties}::{_escaped(finding.message)}")
    return "\n".join([*lines, _totals(findings)])


FORMATS: dict[str, Callable[[Sequence[Finding]], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}


def explanation(rule: Rule) -> str:
    """What `--explain` shows."""
    return "\n\n".join(
        [f"{rule.code} ({rule.severity.word}, {rule.group}): {rule.title}", rule.explanation, *_examples(rule)]
    )


def _totals(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    totals = [f"{counts[severity]} {severity.word}" + "s" * (counts[severity] != 1) for severity in reversed(Severity)]
    return ", ".join(totals) if findings else "no findings"


def _path(finding: Finding) -> str:
    return _shown(finding.at.path)


def _shown(path: Path) -> str:
    """The path relative to the working directory, as code hosts want it, if it lies below."""
    with suppress(OSError, ValueError, RuntimeError):  # it lies elsewhere, or is a loop of links
        path = path.resolve().relative_to(Path.cwd())
    return printable(path.as_posix())


def _sarif_rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.explanation},
        "defaultConfiguration": {"level": SARIF_LEVELS[rule.severity]},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    region = {"startLine": finding.at.line, "startColumn": finding.at.column}
    location = {"artifactLocation": {"uri": _path(finding)}, "region": region}
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": location}],
    }


def _escaped(text: str, *, in_property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def _examples(rule: Rule) -> Iterator[str]:
    for word, example in (("Bad", rule.bad), ("Good", rule.good)):
        if example is not None:
            yield "\n\n".join([f"{word}:", *_files(example)])


def _files(example: Example) -> Iterator[str]:
    if example.config is not None and (example.config or not example.files):
        yield _fenced("config.pbtxt", example.config or "# nothing beyond what every model has")
    for path, text in example.files.items():
        if text:
            yield _fenced(path, text)
        else:
            yield f"`{path}`, an empty folder" if path.endswith("/") else f"`{path}`, an empty file"


def _fenced(path: str, text: str) -> str:
    return f"`{path}`\n```{LANGUAGES.get(Path(path).suffix, 'text')}\n{text.strip()}\n```"
