"""The tables of these experiments, for a terminal or for a page."""

from collections.abc import Sequence

from rich.table import Table

from perf.studies.cluster.record import FaultRecord
from perf.studies.tables import plain_table, rows_markdown

TITLES = (
    "engine",
    "front door",
    "fault",
    "over",
    "rows",
    "requests",
    "failed",
    "wrong",
    "p50 before",
    "longest",
    "capacity back",
)


def fault_cells(record: FaultRecord) -> tuple[str, ...]:
    """The cells of a row."""
    return (
        record.engine,
        record.proxy,
        record.fault,
        record.protocol,
        str(record.rows),
        f"{record.counts.requests:,}",
        str(record.counts.failed),
        str(record.counts.wrong),
        f"{record.before.p50_ms:.0f} ms",
        f"{record.counts.longest_ms:,.0f} ms",
        "not" if record.back_s is None else f"{record.back_s:.1f} s",
    )


def faults(records: Sequence[FaultRecord]) -> Table:
    """The table of faults for a terminal."""
    rows = plain_table(TITLES, left=4)
    for record in records:
        rows.add_row(*fault_cells(record))
    return rows


def faults_markdown(records: Sequence[FaultRecord]) -> str:
    """The table of faults for a page."""
    return rows_markdown(TITLES, map(fault_cells, records), left=4)
