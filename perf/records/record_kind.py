"""The kinds of record: what each is in words, and the command that reads it."""

from collections.abc import Mapping
from pathlib import Path

# Kind -> what it is, and the command that reads it; {folder} is the folder of the record, {file} its path.
KINDS: Mapping[str, tuple[str, str]] = {
    "record": ("a measurement of a sweep", "python -m perf.report {folder}"),
    "ceiling": ("the ceiling of a sweep", "python -m perf.report {folder}"),
    "study": ("a study", "python -m perf.report {folder}"),
    "fleet": ("a run of the load generator", "python -m perf.compare {file} OTHER"),
    "round": ("a round of perf.compare.versus", "python -m perf.compare {folder}:A {folder}:B --noise {folder}:noise"),
    "service_times": ("service times", "python -m perf.simulate MODEL --load closed:16 --results {folder}"),
    "study figures": ("the figures of a study's page", "python -m perf.report {folder}"),
    "comparison": ("a comparison", "python -m perf.compare A B"),
    "grid": ("a full grid", "python -m perf.studies.grid MODEL --results {folder}"),
    "judgement": ("a tuner's choice compared with a full grid", "python -m perf.studies.grid MODEL --results {folder}"),
    "predicted_point": (
        "a measurement beside a prediction",
        "python -m perf.studies.prediction --only-compare --results {folder}/..",
    ),
    "pauses": ("the cost of pauses", "python -m perf.studies.pauses"),
    "goodput": ("a measurement of goodput", "python -m perf.studies.goodput --results {folder}"),
    "peers": ("a comparison with other servers", "python -m perf.studies.peers --results {folder}"),
    "pictures": ("a measurement of perf.studies.pictures", "python -m perf.studies.pictures --results {folder}"),
    "transports": ("a measurement of transports", "python -m perf.studies.transports"),
    "backend_overhead": ("a measurement of the backend's overhead", "python -m perf.studies.backend_overhead"),
    "served_share": ("a measurement of perf.studies.served_share", "python -m perf.studies.served_share"),
    "aimd_cap": ("a measurement of perf.studies.aimd_cap", "python -m perf.studies.aimd_cap"),
    "soak": ("a soak", "python -m perf.studies.soak --show {file}"),
    "overload": ("an overload", "python -m perf.studies.overload MODEL --target-ms MS --results {folder}"),
    "memory trace": ("a memory trace", "python -m perf.studies.memory_lab {file}"),
    "estimate": ("a checked memory estimate", "python -m perf.studies.memory_estimate --results {folder}"),
    "operators": ("checked operators", "python -m perf.studies.memory_estimate.operators --results {folder}"),
}


def other(path: Path, kind: object, wanted: str) -> str | None:
    """One line for a record of a known kind that is not what was `wanted`; None for an unknown kind."""
    if not isinstance(kind, str) or kind not in KINDS:
        return None
    what, command = KINDS[kind]
    return f"{path}: {what} ('{kind}'), not {wanted}. It is read by: {command.format(folder=path.parent, file=path)}"
