"""Records as JSON, and tables as Markdown."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "perf" / "studies" / "results"


def rows_markdown(titles: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> str:
    """A table in Markdown; all columns but the first `left` are aligned to the right."""
    lines = [titles, ["---" if number < left else "--:" for number in range(len(titles))], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def rich_markdown(table: Table) -> str:
    """A table of a terminal in Markdown."""
    titles = [" ".join(str(column.header).split()) for column in table.columns]
    left = sum(column.justify == "left" for column in table.columns) or 1
    return rows_markdown(titles, zip(*(column.cells for column in table.columns), strict=True), left=left)


def record_json(path: str) -> dict[str, Any]:
    """The JSON of one record, by its path below `RESULTS`."""
    found: dict[str, Any] = json.loads((RESULTS / path).read_text())
    return found
