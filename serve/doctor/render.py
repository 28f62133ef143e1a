"""Findings as text for people, as JSON, as SARIF 2.1.0 and as the commands that GitHub's runner understands."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from serve.doctor.examination import printable
from serve.doctor.finding import Finding, Severity
from serve.doctor.rule import RULES

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def as_text(findings: Sequence[Finding]) -> str:
    """One line for each finding, as compilers write it, and the totals."""
    lines = [
        f"{_path(one)}:{one.at.line}:{one.at.column}: {one.severity.word} {one.code}: {one.message}"
        + (" (--fix mends it)" if one.fix else "")
        for one in findings
    ]
    return "\n".join([*lines, _totals(findings)])


def as_json(findings: Sequence[Finding]) -> str:
    """`{"findings": [...]}`, lines and columns from 1."""
    found = [
        {
            "code": one.code,
            "severity": one.severity.word,
            "model": one.model,
            "path": _path(one),
            "line": one.at.line,
            "column": one.at.column,
            "message": one.message,
            "fixable": bool(one.fix),
        }
        for one in findings
    ]
    return json.dumps({"findings": found}, indent=2)


def as_sarif(findings: Sequence[Finding]) -> str:
    """A SARIF 2.1.0 log, for code scanning."""
    codes = sorted({one.code for one in findings})
    driver = {"name": "triton-batching doctor", "rules": [_sarif_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(one, codes.index(one.code)) for one in findings],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands that put each finding on its line of a pull request, and the totals."""
    lines = []
    for one in findings:
        place = {"file": _path(one), "line": one.at.line, "col": one.at.column, "title": one.code}
        properties = ",".join(f"{key}={_escaped(str(value), in_property=True)}" for key, value in place.items())
        lines.append(f"::{GITHUB_LEVELS[one.severity]} {properties}::{_escaped(one.message)}")
    return "\n".join([*lines, _totals(findings)])


FORMATS: dict[str, Callable[[Sequence[Finding]], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}


def _totals(findings: Sequence[Finding]) -> str:
    counts = Counter(one.severity for one in findings)
    named = [f"{counts[severity]} {severity.word}" + "s" * (counts[severity] != 1) for severity in reversed(Severity)]
    return ", ".join(named) if findings else "no findings"


def _path(finding: Finding) -> str:
    """The path below the working directory where it is there, which is what code hosts want."""
    path = finding.at.path
    with suppress(OSError, ValueError, RuntimeError):  # elsewhere, or a loop of links: as it was given
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
