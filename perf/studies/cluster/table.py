"""The tables of these experiments, for a terminal or for a page."""

import statistics
from collections.abc import Sequence

from rich.table import Table

from perf.studies.cluster.clients import PROTOCOLS
from perf.studies.cluster.record import BalanceRecord, FaultRecord
from perf.studies.tables import plain_table, rows_markdown

TITLES = (
    "engine",
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
    rows = plain_table(TITLES, left=3)
    for record in records:
        rows.add_row(*fault_cells(record))
    return rows


def faults_markdown(records: Sequence[FaultRecord]) -> str:
    """The table of faults for a page."""
    return rows_markdown(TITLES, map(fault_cells, records), left=3)


def balance_cells(record: BalanceRecord) -> tuple[str, ...]:
    """The cells of a row: medians of the rounds, with the smallest and the largest."""
    gains, spreads = [each.gain for each in record.rounds], [each.spread for each in record.rounds]
    costs = [
        f"{protocol} x {record.cost(protocol):.2f}"
        f" ({statistics.median(each.direct_ms[protocol] for each in record.rounds):.1f} ms)"
        for protocol in PROTOCOLS
    ]
    size = "" if record.max_batch_size is None else f", batches of {record.max_batch_size}"
    return (
        f"{record.model} {record.config_name or ''}{size}",
        record.protocol,
        str(len(record.rounds)),
        f"x {record.gain:.2f} ({min(gains):.2f} to {max(gains):.2f})",
        f"{record.spread:.2f} ({min(spreads):.2f} to {max(spreads):.2f})",
        ", ".join(costs),
    )


BALANCE_TITLES = (
    "model",
    "over",
    "rounds",
    "three replicas / one",
    "largest / smallest share",
    "one client's p50 through the door / without (without)",
)


def balance(records: Sequence[BalanceRecord]) -> Table:
    """The table of balances for a terminal."""
    rows = plain_table(BALANCE_TITLES, left=2)
    for record in records:
        rows.add_row(*balance_cells(record))
    return rows


def balance_markdown(records: Sequence[BalanceRecord]) -> str:
    """The table of balances for a page."""
    return rows_markdown(BALANCE_TITLES, map(balance_cells, records), left=2)
