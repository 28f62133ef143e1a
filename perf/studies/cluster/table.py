"""The tables of these experiments, for a terminal or for a page."""

import statistics
from collections.abc import Sequence

from rich.table import Table

from perf.studies.cluster.clients import PROTOCOLS
from perf.studies.cluster.record import BalanceRecord, FaultRecord, HostileRecord
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


HOSTILE_TITLES = ("who", "sent", "what came of it")


def hostile_rows(record: HostileRecord) -> list[tuple[str, ...]]:
    """A row for each tenant and attack, and one for the servers."""
    outcome, rows = record.outcome, []
    for name, counts in outcome.tenants.items():
        in_time = outcome.in_time.get(name)
        share = "" if in_time is None else f", {in_time:.2%} within {record.target_ms:g} ms"
        refused = f"{counts.failed:,} refused, {counts.wrong} wrong, p99 {counts.p99_ms:.0f} ms{share}"
        rows.append((name, f"{counts.requests:,} requests", refused))
    for name, results in outcome.attacks.items():
        sent = f"{sum(results.values()):,}"
        rows.append((name, sent, ", ".join(f"{what}: {count:,}" for what, count in sorted(results.items()))))
    lived = f"{outcome.deaths} replicas and {outcome.proxy_restarts} front doors died in {record.seconds:g} s"
    return [*rows, ("servers", "", lived)]


def hostile(record: HostileRecord) -> Table:
    """The table of a hostile load for a terminal."""
    rows = plain_table(HOSTILE_TITLES, left=3)
    for row in hostile_rows(record):
        rows.add_row(*row)
    return rows


def hostile_markdown(record: HostileRecord) -> str:
    """The table of a hostile load for a page."""
    return rows_markdown(HOSTILE_TITLES, hostile_rows(record), left=3)
