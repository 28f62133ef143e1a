"""The tables of a soak, made from its record."""

from collections.abc import Iterator

from rich.table import Table

from perf.stats.verdict import CANNOT_TELL
from perf.studies.soak.growth import BYTES, FLAT, Growth
from perf.studies.soak.outcome import CallOutcome
from perf.studies.soak.record import SoakRecord
from perf.studies.tables import plain_table

# Series that are shown; the record has all.
SHOWN = 8


def tried(record: SoakRecord) -> Table:
    """A row for each client process: how its calls ended."""
    outcomes = [outcome for outcome in CallOutcome if any(user.outcomes.get(outcome) for user in record.users)]
    table = plain_table(("client process", "models", "callers", "calls", *outcomes), left=2)
    for user in record.users:
        counts = [user.outcomes.get(outcome, 0) for outcome in outcomes]
        cells = [
            user.name,
            " ".join(user.models),
            str(user.callers),
            f"{sum(counts):,}",
            *(f"{count:,}" for count in counts),
        ]
        table.add_row(*cells)
    totals = [sum(user.outcomes.get(outcome, 0) for user in record.users) for outcome in outcomes]
    table.add_row("all", "", "", f"{sum(totals):,}", *(f"{total:,}" for total in totals), style="bold")
    return table


def grown(record: SoakRecord) -> Table:
    """The series closest to their limits, the worst first."""
    table = plain_table(("series", "first", "last", "growth", "95 % of all series", "limit", "verdict"))
    for growth in sorted(record.growths, key=_share, reverse=True)[:SHOWN]:
        interval = (
            ""
            if growth.low is None or growth.high is None
            else f"{_amount(growth, growth.low)} to {_amount(growth, growth.high)}"
        )
        cells = (_amount(growth, growth.first), _amount(growth, growth.last), _amount(growth, growth.growth), interval)
        table.add_row(growth.series, *cells, _amount(growth, growth.allowed), growth.verdict)
    return table


def lines(record: SoakRecord) -> Iterator[str]:
    """Batching, growth and the verdict in sentences."""
    formed = (
        f"{model} {served.rows / served.executions:.2f} ({served.executions:,})"
        for model, served in record.served.items()
        if served.executions
    )
    yield f"rows per execution (executions): {', '.join(formed) or 'unknown, the server is gone'}"
    flat = sum(growth.verdict == FLAT for growth in record.growths)
    unsure = sum(growth.verdict == CANNOT_TELL for growth in record.growths)
    yield f"{len(record.growths)} series: {flat} flat, {unsure} cannot tell{' (run it for longer)' if unsure else ''}"
    if record.interrupted:
        yield f"interrupted after {record.seconds:.0f} of {record.minutes * 60:.0f} s"
    if not record.problems:
        yield f"no problems: {record.calls:,} calls in {record.seconds:.0f} s, each with an allowed outcome"
    yield from (f"PROBLEM {problem}" for problem in record.problems)


def _share(growth: Growth) -> float:
    return (growth.growth if growth.high is None else growth.high) / growth.allowed


def _amount(growth: Growth, value: float) -> str:
    return f"{value / 2**20:,.1f} MiB" if growth.unit == BYTES else f"{value:,.1f}"
