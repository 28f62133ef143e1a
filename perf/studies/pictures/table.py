"""The table of perf.studies.pictures, as grps prints its own: none against dynamic for each number in flight."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

WIDTH = 170
COLUMNS = (
    "in flight", "none ms", "dynamic ms", "change", "min..max", "none p./s", "dyn. p./s", "rows/ex.",
    "none CPU", "dyn. CPU", "none MiB", "dyn. MiB", "GPU", "GPU MiB", "Little",
)  # fmt: skip

SKIPPED = ("GPU MiB", "Little")


def table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Medians over the repeats; `change` is that of the mean latency, paired within a repeat, with its range.

    CPU is cores that the server kept busy. `Little` is the worst of concurrency / (pictures/s x mean latency) - 1.
    """
    first = records[0]
    title = f"{first['model']} with {first['classifier']}, {len(records)} repeats, {first['machine']['cpu']}"
    made = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in COLUMNS:
        made.add_column(column, justify="right", no_wrap=True)
    for row in _rows(records):
        made.add_row(*row)
    return made


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The same rows for a README, without the columns that only judge the measurement."""
    kept = [column for column in COLUMNS if column not in SKIPPED]
    lines = [f"| {' | '.join(kept)} |", f"|{'--:|' * len(kept)}"]
    for row in _rows(records):
        cells = [cell for column, cell in zip(COLUMNS, row, strict=True) if column in kept]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(records: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for concurrency in sorted({point["concurrency"] for record in records for point in record["points"]}):
        pairs = [pair for record in records if (pair := _pair(record, concurrency)) is not None]
        if pairs:
            yield _cells(concurrency, pairs)


def changes(records: Sequence[Mapping[str, Any]], concurrency: int) -> list[float]:
    """Mean latency of dynamic over that of none, minus 1, of each repeat."""
    pairs = [pair for record in records if (pair := _pair(record, concurrency)) is not None]
    return [dynamic["mean_ms"] / none["mean_ms"] - 1 for none, dynamic in pairs]


def little(point: Mapping[str, Any]) -> float:
    """How far concurrency / mean latency is from the throughput."""
    return float(point["concurrency"] / (point["pictures_per_s"] * point["mean_ms"] / 1e3) - 1)


def _pair(record: Mapping[str, Any], concurrency: int) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    found = {point["variant"]: point for point in record["points"] if point["concurrency"] == concurrency}
    return (found["baseline"], found["dynamic"]) if len(found) == 2 else None


def _cells(concurrency: int, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    def median(which: int, name: str) -> float:
        return float(statistics.median(pair[which][name] for pair in pairs))

    changed = [dynamic["mean_ms"] / none["mean_ms"] - 1 for none, dynamic in pairs]
    gpu = pairs[0][1]["gpu_busy_percent"] is not None
    worst = max((little(point) for pair in pairs for point in pair), key=abs)
    return [
        str(concurrency),
        f"{median(0, 'mean_ms'):.1f}",
        f"{median(1, 'mean_ms'):.1f}",
        f"{statistics.median(changed):+.1%}",
        f"{min(changed):+.1%}..{max(changed):+.1%}",
        f"{median(0, 'pictures_per_s'):.1f}",
        f"{median(1, 'pictures_per_s'):.1f}",
        f"{median(1, 'classifier_rows'):.1f}",
        f"{median(0, 'cpu_cores'):.2f}",
        f"{median(1, 'cpu_cores'):.2f}",
        f"{median(0, 'memory_mib'):.0f}",
        f"{median(1, 'memory_mib'):.0f}",
        f"{median(0, 'gpu_busy_percent'):.0f}/{median(1, 'gpu_busy_percent'):.0f}%" if gpu else "none",
        f"{median(0, 'gpu_memory_mib'):.0f}/{median(1, 'gpu_memory_mib'):.0f}" if gpu else "",
        f"{worst:+.1%}",
    ]
