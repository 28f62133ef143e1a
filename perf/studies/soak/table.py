"""What a soak tried and what it found, as tables made from its record."""

from collections.abc import Iterator

from rich import box
from rich.table import Table

from perf.studies.soak.growth import BYTES, CANNOT_TELL, FLAT, Growth
from perf.studies.soak.outcome import CallOutcome
from perf.studies.soak.record import SoakRecord

# Worst growths that are shown; the record has all.
SHOWN = 8


def tried(record: SoakRecord) -> Table:
    """A line for each client process: how its calls ended."""
    table = Table(box=box.SIMPLE)
    table.add_column("client process")
    seen = [one for one in CallOutcome if any(user.outcomes.get(one) for user in record.users)]
    for title in ("models", "callers", "calls", *seen):
        table.add_column(title, justify="left" if title == "models" else "right")
    for user in record.users:
        counts = [user.outcomes.get(one, 0) for one in seen]
        cells = [
            user.name,
            " ".join(user.models),
            str(user.callers),
            f"{sum(counts):,}",
            *(f"{one:,}" for one in counts),
        ]
        table.add_row(*cells)
    totals = [sum(user.outcomes.get(one, 0) for user in record.users) for one in seen]
    table.add_row("all", "", "", f"{sum(totals):,}", *(f"{one:,}" for one in totals), style="bold")
    return table


def grown(record: SoakRecord) -> Table:
    """The series nearest to what is allowed, the worst first."""
    table = Table(box=box.SIMPLE)
    for title in ("series", "first", "last", "growth", "95 % of all series", "allowed", "verdict"):
        table.add_column(title, justify="left" if title == "series" else "right")
    for one in sorted(record.growths, key=_share, reverse=True)[:SHOWN]:
        interval = "" if one.low is None or one.high is None else f"{_amount(one, one.low)} to {_amount(one, one.high)}"
        cells = (_amount(one, one.first), _amount(one, one.last), _amount(one, one.growth), interval)
        table.add_row(one.series, *cells, _amount(one, one.allowed), one.verdict)
    return table


def lines(record: SoakRecord) -> Iterator[str]:
    """Batching, growth and the verdict in sentences."""
    formed = (
        f"{model} {one.rows / one.executions:.2f} ({one.executions:,})"
        for model, one in record.served.items()
        if one.executions
    )
    yield f"rows per execution (executions): {', '.join(formed) or 'not known, the server is gone'}"
    flat = sum(one.verdict == FLAT for one in record.growths)
    unsure = sum(one.verdict == CANNOT_TELL for one in record.growths)
    yield f"{len(record.growths)} series: {flat} flat, {unsure} cannot tell{', a longer run can' if unsure else ''}"
    if record.interrupted:
        yield f"interrupted after {record.seconds:.0f} of {record.minutes * 60:.0f} s"
    if not record.found:
        yield f"found nothing: {record.calls:,} calls in {record.seconds:.0f} s, each ended as it may"
    yield from (f"FOUND {one}" for one in record.found)


def _share(one: Growth) -> float:
    return (one.growth if one.high is None else one.high) / one.allowed


def _amount(one: Growth, value: float) -> str:
    return f"{value / 2**20:,.1f} MiB" if one.unit == BYTES else f"{value:,.1f}"
