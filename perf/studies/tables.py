"""Tables for the terminal, and the same as Markdown."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from perf.stats.interval import Interval


def plain_table(titles: Sequence[str], *, left: int = 1, title: str | None = None) -> Table:
    """An empty table without a frame; all columns but the first `left` are aligned to the right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, text in enumerate(titles):
        table.add_column(text, justify="left" if number < left else "right", no_wrap=True, vertical="bottom")
    return table


def rows_markdown(titles: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> str:
    """A table in Markdown; all columns but the first `left` are aligned to the right."""
    lines = [titles, ["---" if number < left else "--:" for number in range(len(titles))], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def rich_markdown(table: Table, *, without: Sequence[str] = ()) -> str:
    """A table of the terminal in Markdown, without the columns whose titles are in `without`."""
    titles = [" ".join(str(column.header).split()) for column in table.columns]
    columns = [column for column, title in zip(table.columns, titles, strict=True) if title not in without]
    left = sum(column.justify == "left" for column in columns)
    rows = zip(*(column.cells for column in columns), strict=True)
    return rows_markdown([title for title in titles if title not in without], rows, left=left)


def interval_text(interval: Interval) -> str:
    """A ratio with its interval, to two digits; a single measurement has none, and neither have equal ones."""
    if interval.count < 2:
        return f"{interval.value:.2f} (measured once)"
    if not interval.bounded:
        return f"{interval.value:.2f} (no interval)"
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"
