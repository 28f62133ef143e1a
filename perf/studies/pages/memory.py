"""The tables about memory: its estimate, and allocators on recorded inferences."""

import statistics
import textwrap
from collections.abc import Sequence

from perf.memory.figures import number
from perf.records import file
from perf.studies.archive import RESULTS
from perf.studies.memory_estimate import operators, random_check
from perf.studies.memory_estimate.__main__ import EstimateRecord
from perf.studies.memory_estimate.check import BATCHES, CheckedSession
from perf.studies.memory_lab.comparison import LabRecord
from perf.studies.memory_lab.trial import AllocatorTrial
from perf.studies.tables import rich_markdown, rows_markdown

FOLDER = RESULTS / "memory"
# Models whose arenas are shown.
SHOWN = ("resnet50", "text_recognition_512", "depthwise_32", "unet_16", "transformer_128")


def sessions() -> dict[str, tuple[CheckedSession, ...]]:
    """The compared sessions of each model that can be estimated."""
    records = {path.stem: file.read(path, EstimateRecord) for path in sorted((FOLDER / "estimate").glob("*.json"))}
    return {name: record.sessions for name, record in records.items() if record.sessions}


def nodes(compared: Sequence[CheckedSession]) -> int:
    """The nodes at whose ends the estimate was compared."""
    return sum(session.boundaries for session in compared)


def mismatches(compared: Sequence[CheckedSession]) -> int:
    """The fields that differ, over all nodes."""
    return sum(len(session.mismatches) for session in compared)


def estimate() -> str:
    """Memory estimated and measured, at every node of each model."""
    rows = [(name, len(each), f"{nodes(each):,}", mismatches(each)) for name, each in sessions().items()]
    return rows_markdown(("model", "sessions", "nodes compared", "mismatches"), rows)


def arenas() -> str:
    """Peak and held bytes of some models, measured at the largest batch size."""
    titles = ("model", "basic: peak, MiB", "held", "as served: peak, MiB", "held")
    rows = []
    for name in SHOWN:
        measured = [_largest(name, setting).measured for setting in ("basic", "served")]
        rows.append((name, *(number(size) for end in measured for size in (end.peak, end.held))))
    return rows_markdown(titles, rows)


def _largest(name: str, setting: str) -> CheckedSession:
    """The session that ran only the largest batch size."""
    (found,) = (
        session for session in sessions()[name] if session.setting == setting and set(session.sizes) == {BATCHES[-1]}
    )
    return found


def kernels() -> str:
    """How many operators are exact on onnx's node tests, and which are not."""
    record = file.read(FOLDER / "kernels" / operators.NAME, operators.OperatorRecord)
    wrong = {line.partition(": ")[0] for line in record.not_exact if ": mismatch" in line}
    text = (
        f"{len(record.checked)} operators are exact in all of their tests that onnxruntime runs and whose shapes do "
        f"not depend on values. {len(wrong)} are not: {', '.join(sorted(wrong))}."
    )
    return textwrap.fill(text, 120)


def random_record() -> random_check.RandomRecord:
    """The check of random graphs in git."""
    return file.read(FOLDER / "random" / random_check.NAME, random_check.RandomRecord)


def random_graphs() -> str:
    """The kinds of figures of random graphs, and how many of them are wrong."""
    return rich_markdown(random_check.table(random_record()))


def allocator_trials() -> dict[str, list[AllocatorTrial]]:
    """The trials of each allocator, over all recorded inferences."""
    trials: dict[str, list[AllocatorTrial]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for trial in file.read(path, LabRecord).trials:
            trials.setdefault(trial.allocator, []).append(trial)
    return trials


def lab() -> str:
    """Memory that each allocator holds, over all recorded inferences."""
    rows = []
    for name, trials in allocator_trials().items():
        ratios = [trial.held_over_load for trial in trials]
        shown = ", ".join(f"{ratio:.3f}" for ratio in (min(ratios), statistics.median(ratios), max(ratios)))
        first_calls, later_calls = (
            max(trial.first_calls for trial in trials),
            max(trial.later_calls for trial in trials),
        )
        rows.append((name, shown, first_calls, later_calls))
    titles = ("allocator", "held / bound: least, median, most", "most device calls of a first pass", "of a later one")
    return rows_markdown(titles, rows)
