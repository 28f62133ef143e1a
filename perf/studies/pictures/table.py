"""The record of one repeat of `perf.studies.pictures`, and the table of several repeats."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table

from perf.studies.experiment import Origin
from perf.studies.tables import plain_table, rich_markdown

BASELINE, DYNAMIC = VARIANTS = ("baseline", "dynamic")
COLUMNS = (
    "in flight", "none ms", "dynamic ms", "change", "min..max", "none p./s", "dyn. p./s", "rows/ex.",
    "none CPU", "dyn. CPU", "none MiB", "dyn. MiB", "GPU", "GPU MiB", "Little",
)  # fmt: skip
# The terminal needs this many characters for all columns.
WIDTH = 170


@dataclass(frozen=True, kw_only=True)
class PicturesTrial:
    """One closed loop of one-picture requests: latencies in ms of those answered within `wall_s`.

    `cpu_cores` is the mean number of cores that the server's processes kept busy, `memory_mib` their memory at the end,
    `classifier_rows` the rows per execution of the classifier, `changed` the answers with a first class other than that
    of the same picture sent alone.
    """

    variant: str
    concurrency: int
    wall_s: float
    requests: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    pictures_per_s: float
    cpu_cores: float
    memory_mib: float
    gpu_busy_percent: float | None
    gpu_memory_mib: float | None
    classifier_rows: float
    changed: int


@dataclass(frozen=True, kw_only=True)
class PicturesRecord(Origin):
    """One repeat: every concurrency on both variants."""

    KIND: ClassVar[str] = "pictures"
    FORMAT: ClassVar[int] = 1
    model: str
    classifier: str
    points: tuple[PicturesTrial, ...]

    def pair(self, concurrency: int) -> tuple[PicturesTrial, PicturesTrial] | None:
        """The trials of `baseline` and `dynamic` at a concurrency; None unless both were measured."""
        trials = {trial.variant: trial for trial in self.points if trial.concurrency == concurrency}
        return (trials[BASELINE], trials[DYNAMIC]) if len(trials) == len(VARIANTS) else None


def table(records: Sequence[PicturesRecord]) -> Table:
    """Medians over the repeats; `change` is that of the mean latency, paired within a repeat, with its range.

    CPU is the number of busy cores. `Little` is the worst of concurrency / (pictures/s x mean latency) - 1.
    """
    first = records[0]
    title = f"{first.model} with {first.classifier}, {len(records)} repeats, {first.machine.cpu}"
    rows = plain_table(COLUMNS, left=0, title=title)
    for cells in _rows(records):
        rows.add_row(*cells)
    return rows


def markdown(records: Sequence[PicturesRecord]) -> str:
    """The table for a page, without the columns that only judge the measurement."""
    return rich_markdown(table(records), without=("GPU MiB", "Little"))


def changes(records: Sequence[PicturesRecord], concurrency: int) -> list[float]:
    """Mean latency of dynamic over that of baseline, minus 1, of each repeat."""
    return _changes(_pairs(records, concurrency))


def little(trial: PicturesTrial) -> float:
    """Concurrency over throughput x mean latency, minus 1; 0 by Little's law."""
    return trial.concurrency / (trial.pictures_per_s * trial.mean_ms / 1e3) - 1


def _rows(records: Sequence[PicturesRecord]) -> Iterator[list[str]]:
    for concurrency in sorted({trial.concurrency for record in records for trial in record.points}):
        if pairs := _pairs(records, concurrency):
            yield _cells(concurrency, pairs)


def _pairs(records: Sequence[PicturesRecord], concurrency: int) -> list[tuple[PicturesTrial, PicturesTrial]]:
    return [pair for record in records if (pair := record.pair(concurrency)) is not None]


def _changes(pairs: Sequence[tuple[PicturesTrial, PicturesTrial]]) -> list[float]:
    return [dynamic.mean_ms / baseline.mean_ms - 1 for baseline, dynamic in pairs]


def _cells(concurrency: int, pairs: Sequence[tuple[PicturesTrial, PicturesTrial]]) -> list[str]:
    def medians(name: str) -> tuple[float, float]:
        """The medians of a field over the repeats: baseline's and dynamic's."""
        baseline, dynamic = ([getattr(pair[side], name) for pair in pairs] for side in (0, 1))
        return statistics.median(baseline), statistics.median(dynamic)

    ratios = _changes(pairs)
    gpu = pairs[0][1].gpu_busy_percent is not None
    worst = max((little(trial) for pair in pairs for trial in pair), key=abs)
    return [
        str(concurrency),
        *(f"{value:.1f}" for value in medians("mean_ms")),
        f"{statistics.median(ratios):+.1%}",
        f"{min(ratios):+.1%}..{max(ratios):+.1%}",
        *(f"{value:.1f}" for value in medians("pictures_per_s")),
        f"{medians('classifier_rows')[1]:.1f}",
        *(f"{value:.2f}" for value in medians("cpu_cores")),
        *(f"{value:.0f}" for value in medians("memory_mib")),
        "{:.0f}/{:.0f}%".format(*medians("gpu_busy_percent")) if gpu else "none",
        "{:.0f}/{:.0f}".format(*medians("gpu_memory_mib")) if gpu else "",
        f"{worst:+.1%}",
    ]
