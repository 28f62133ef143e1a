"""What the server used with the shown candidate and with the current configuration, for part 1."""

from collections.abc import Mapping
from dataclasses import asdict

from perf.records.resource_use import ResourceUse
from perf.report.study.evidence import Evidence


def used(evidence: Evidence) -> Mapping[str, ResourceUse]:
    """What was used, by candidate in words; empty if the records do not say it."""
    both = dict.fromkeys((evidence.shown, evidence.study.default))
    return {evidence.label(candidate): use for candidate in both if str(use := evidence.used(candidate))}


def sentence(evidence: Evidence) -> str:
    """The use in words; empty if the records do not say it."""
    texts = [f"{use} with {label}" for label, use in used(evidence).items()]
    return f"The server used at most {'; '.join(texts)}." if texts else ""


def data(evidence: Evidence) -> Mapping[str, object]:
    """The same for the JSON file, with None for what is not known."""
    return {label: asdict(use) for label, use in used(evidence).items()}
