"""The table of overloads, one line for each record, for a terminal or for a page."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from perf.studies.overload.bound import OWN
from perf.studies.overload.record import OverloadRecord

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


def cells(one: OverloadRecord) -> tuple[str, ...]:
    """What a row says."""
    first, last = one.settled_mb
    refused = one.during.refused
    return (
        f"{one.model} {one.config_name or ''}".strip(),
        one.bound if one.bound != OWN else "as shipped",
        f"x {one.times:g}, {one.seconds:g} s",
        f"{one.before.p99_ms:.0f} ms",
        f"after {one.give_up_ms / 1e3:g} s ({one.during.gave_up})" if one.give_up_ms else "no",
        f"{one.during.in_time_per_s:.1f} / {one.capacity_per_s:.1f} = {one.share:.2f}",
        f"{one.during.p99_ms:.0f} ms" if one.during.right else "none",
        f"{refused / one.during.due:.0%}" if one.during.due else "",
        f"{one.during.refused_p99_ms:.0f} ms" if refused else "",
        f"{first:.0f}, {last:.0f} MB",
        "never" if one.recovery_s is None else f"{one.recovery_s:.1f} s",
    )


def table(found: Sequence[OverloadRecord]) -> Table:
    """For a terminal."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, title in enumerate(TITLES):
        shown.add_column(title, justify="left" if number < 3 else "right")
    for one in found:
        shown.add_row(*cells(one))
    return shown


def markdown(found: Sequence[OverloadRecord]) -> str:
    """For a document."""
    rows = [TITLES, ("---",) * len(TITLES), *(cells(one) for one in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def ordered(found: Sequence[OverloadRecord]) -> list[OverloadRecord]:
    """The longest first, then by what clients do and by the limit, the shipped one first."""
    return sorted(found, key=lambda one: (-one.seconds, one.model, one.give_up_ms or 0, one.bound != OWN, one.bound))
