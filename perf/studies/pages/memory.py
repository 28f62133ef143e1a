"""The table of allocators on recorded inferences."""

import statistics

from perf.records import file
from perf.studies.archive import RESULTS
from perf.studies.memory_lab.__main__ import AllocatorTrial, LabRecord
from perf.studies.tables import rows_markdown


def allocator_trials() -> dict[str, list[AllocatorTrial]]:
    """The trials of each allocator, over all recorded inferences."""
    trials: dict[str, list[AllocatorTrial]] = {}
    for path in sorted((RESULTS / "memory").glob("*.json")):
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
