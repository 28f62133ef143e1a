"""The table of a comparison, for a terminal (with as many columns as fit) or as Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from perf.report.sweep.summary import Comparison, Row
from perf.stats.interval import Interval


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its title and the text of a cell. Columns with the highest `drop` are left out first; 0 is never."""

    title: str
    value: Callable[[Row], str]
    drop: int = 0
    left: bool = False

    def width(self, rows: Sequence[Row]) -> int:
        """The width in characters."""
        return max(len(text) for text in (*self.title.split("\n"), *map(self.value, rows)))


def _ms(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e3:,.1f}"


def _times(ratio: Interval | None) -> str:
    return f"{ratio.value:.2f}" if ratio else ""


def ends_of(ratio: Interval | None, between: str = "..") -> str:
    """The ends of an interval; empty for one repeat, which has none."""
    if ratio is None or not ratio.bounded:
        return ""
    return f"{ratio.low:.2f}{between}{f'{ratio.high:.2f}' if ratio.high <= MOST else f'over {MOST}'}"


def _to_ceiling(row: Row) -> str:
    return _times(row.to_ceiling) + ("*" if row.above_ceiling else "")


def _verdict(row: Row) -> str:
    return row.verdict.word if row.verdict and not row.once else ""


def _to_baseline(row: Row) -> str:
    return "" if row.verdict is None else ends_of(row.to_baseline)


def _filled(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _within(row: Row) -> str:
    """How far the interval of the throughput ends from its value, in percent."""
    if row.throughput is None or not row.throughput.bounded:
        return ""
    percent = 100 * (row.throughput.high / row.throughput.value - 1)
    return f"{percent:.1f}" if percent <= MOST else f"over {MOST}"


# Larger ends of an interval say only that it is unknown.
MOST = 99
MARK = Column(title="", value=lambda row: "!" if row.marks else "", left=True)
COLUMNS = (
    Column(title="config", value=lambda row: row.config_name, left=True),
    Column(title="conc.", value=lambda row: str(row.load.concurrency)),
    Column(title="rows/\nrequest", value=lambda row: str(row.load.request_rows), drop=9),
    Column(title="rows/s", value=lambda row: f"{row.throughput_rows_per_s:,.1f}"),
    Column(title="+- %", value=_within, drop=10),
    Column(title="p50\nms", value=lambda row: _ms(row.p50_us), drop=7),
    Column(title="p95\nms", value=lambda row: _ms(row.p95_us)),
    Column(title="p99\nms", value=lambda row: _ms(row.p99_us), drop=6),
    Column(title="queue\nms", value=lambda row: _ms(row.stages.queue_us), drop=4),
    Column(title="compute\nms", value=lambda row: _ms(row.stages.compute_us), drop=5),
    Column(title="rows/\nexec.", value=lambda row: f"{row.rows_per_execution:.1f}", drop=1),
    Column(title="x base", value=lambda row: _times(row.to_baseline)),
    Column(title="interval", value=_to_baseline, drop=8),
    Column(title="verdict", value=_verdict, drop=2, left=True),
    Column(title="x ceil.", value=_to_ceiling, drop=3),
    Column(title="server\ncores", value=lambda row: _filled(row.used.server_cores, "{:.2f}"), drop=11),
    Column(title="server\nMiB", value=lambda row: _filled(row.used.server_memory_mib, "{:,.0f}"), drop=12),
    Column(title="GPU\nbusy", value=lambda row: _filled(row.used.gpu_busy, "{:.0%}"), drop=11),
    Column(title="GPU\nMiB", value=lambda row: _filled(row.used.gpu_memory_mib, "{:,.0f}"), drop=12),
    MARK,
)


def filled(comparison: Comparison) -> tuple[Column, ...]:
    """The columns with a value in any row, and the mark."""
    return tuple(column for column in COLUMNS if column is MARK or any(map(column.value, comparison.rows)))


def fitting(comparison: Comparison, width: int) -> tuple[tuple[Column, ...], int]:
    """The columns for a terminal of `width` characters, and the gap between them."""
    columns = list(filled(comparison))
    while True:
        needed = sum(column.width(comparison.rows) for column in columns)
        gaps = len(columns) - 1
        if needed + 2 * gaps <= width:
            return tuple(columns), 2
        dropped = max(columns, key=lambda column: column.drop)
        if needed + gaps <= width or not dropped.drop:
            return tuple(columns), 1
        columns.remove(dropped)


def table(comparison: Comparison, width: int) -> Table:
    """A row per configuration and concurrency; marked rows are dim and end with an exclamation mark."""
    columns, gap = fitting(comparison, width)
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column in columns:
        justify = "left" if column.left else "right"
        rows.add_column(column.title, justify=justify, no_wrap=True, vertical="bottom")  # type: ignore[arg-type]
    for name in comparison.config_names:
        for row in comparison.of(name):
            rows.add_row(*(column.value(row) for column in columns), style="dim" if row.marks else None)
        rows.add_section()
    return rows


def markdown(comparison: Comparison) -> str:
    """The table as Markdown, with all columns that have a value."""
    columns = [column for column in filled(comparison) if column.title]
    lines = [
        "| " + " | ".join(column.title.replace("\n", " ") for column in columns) + " |",
        "|" + "|".join("---" if column.left else "--:" for column in columns) + "|",
    ]
    for row in comparison.rows:
        cells = [column.value(row) for column in columns]
        cells[0] += " !" if row.marks else ""
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
