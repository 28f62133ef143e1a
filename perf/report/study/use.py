"""What the server used with the shown candidate and with the current configuration: a sentence of part 1."""

from collections.abc import Mapping
from dataclasses import asdict

from perf.records.resource_use import ResourceUse
from perf.report.study.evidence import Evidence


def used(evidence: Evidence) -> Mapping[str, ResourceUse]:
    """The most that was used in any window, by candidate in words; empty if the records do not say it."""
    of = {
        evidence.label(candidate): ResourceUse.of((trial.used for trial in evidence.of(candidate)), max)
        for candidate in dict.fromkeys((evidence.shown, evidence.study.default))
    }
    return {label: use for label, use in of.items() if str(use)}


def sentence(evidence: Evidence) -> str:
    """The use in words; empty if the records do not say it."""
    texts = [f"{use} with {label}" for label, use in used(evidence).items()]
    return f"The server used at most {'; '.join(texts)}." if texts else ""


def data(evidence: Evidence) -> Mapping[str, object]:
    """The same for the JSON file, with None for what is not known."""
    return {label: asdict(use) for label, use in used(evidence).items()}
