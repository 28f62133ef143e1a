"""The table of overloads: one line for each record."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from perf.overload.record import Record

TITLES = (
    "model",
    "bound",
    "p99 at half load",
    "clients give up",
    "in time / capacity",
    "p99 answered",
    "refused",
    "refused, p99",
    "memory, 30 s and end",
    "recovery",
)


def cells(one: Record) -> tuple[str, ...]:
    """What a row says."""
    first, last = one.settled_mb
    refused = one.during.refused
    return (
        f"{one.model} {one.config_name or ''}".strip(),
        one.bound,
        f"{one.before.p99_ms:.0f} ms",
        f"after {one.give_up_ms / 1e3:g} s ({one.during.gave_up})" if one.give_up_ms else "no",
        f"{one.during.in_time_per_s:.1f} / {one.capacity_per_s:.1f} = {one.share:.2f}",
        f"{one.during.p99_ms:.0f} ms" if one.during.right else "none",
        f"{refused / one.during.due:.0%}" if one.during.due else "",
        f"{one.during.refused_p99_ms:.0f} ms" if refused else "",
        f"{first:.0f}, {last:.0f} MB",
        "never" if one.recovery_s is None else f"{one.recovery_s:.1f} s",
    )


def table(found: Sequence[Record]) -> Table:
    """For a terminal."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, title in enumerate(TITLES):
        shown.add_column(title, justify="left" if number < 2 else "right")
    for one in found:
        shown.add_row(*cells(one))
    return shown


def markdown(found: Sequence[Record]) -> str:
    """For a document."""
    rows = [TITLES, ("---",) * len(TITLES), *(cells(one) for one in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
