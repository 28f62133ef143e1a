"""The table of overloads, one line for each record, for a terminal or for a page."""

from collections.abc import Sequence

from rich.table import Table

from perf.studies.overload.bound import OWN
from perf.studies.overload.record import OverloadRecord
from perf.studies.tables import plain_table, rows_markdown

TITLES = (
    "model",
    "limit",
    "overload",
    "p99 at half load",
    "clients give up",
    "in time / capacity",
    "p99 answered",
    "refused",
    "refused, p99",
    "memory, 30 s and end",
    "recovery",
)


def cells(record: OverloadRecord) -> tuple[str, ...]:
    """The cells of a row."""
    first, last = record.settled_mb
    refused = record.during.refused
    return (
        f"{record.model} {record.config_name or ''}".strip(),
        record.bound if record.bound != OWN else "as shipped",
        f"x {record.times:g}, {record.seconds:g} s",
        f"{record.before.p99_ms:.0f} ms",
        f"after {record.give_up_ms / 1e3:g} s ({record.during.gave_up})" if record.give_up_ms else "no",
        f"{record.during.in_time_per_s:.1f} / {record.capacity_per_s:.1f} = {record.share:.2f}",
        f"{record.during.p99_ms:.0f} ms" if record.during.right else "none",
        f"{refused / record.during.due:.0%}" if record.during.due else "",
        f"{record.during.refused_p99_ms:.0f} ms" if refused else "",
        f"{first:.0f}, {last:.0f} MB",
        "never" if record.recovery_s is None else f"{record.recovery_s:.1f} s",
    )


def table(records: Sequence[OverloadRecord]) -> Table:
    """The table for a terminal."""
    rows = plain_table(TITLES, left=3)
    for record in records:
        rows.add_row(*cells(record))
    return rows


def markdown(records: Sequence[OverloadRecord]) -> str:
    """The table for a page."""
    return rows_markdown(TITLES, map(cells, records), left=len(TITLES))


def ordered(records: Sequence[OverloadRecord]) -> list[OverloadRecord]:
    """Sort by length, longest first, then by the clients' patience and by the bound, the shipped one first."""
    return sorted(
        records,
        key=lambda record: (-record.seconds, record.model, record.give_up_ms or 0, record.bound != OWN, record.bound),
    )
