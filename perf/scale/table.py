"""How many replicas simulated days take, as a table and sentences for the terminal."""

import math
import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from perf.scale.comparison import FIXED, PENDING, ScaleRecord, Tried


def show(record: ScaleRecord, console: Console) -> None:
    """Print what one replica can do, and the replicas at its capacity and for the goal."""
    curve = record.curve
    console.print(
        f"{record.deployment}: one replica takes {curve.capacity.rate_per_s:,.1f} requests/s within "
        f"{curve.target_ms:g} ms ({curve.percent:g} %), with {curve.target_pending:.1f} in flight (steepness "
        f"{curve.steepness:.1f}); at most {curve.saturated_per_s:,.1f}/s",
        markup=False,
    )
    requests = sum(run.outcome.requests for run in _at_capacity(record))
    days = f"{record.days} day{'s' if record.days > 1 else ''}"
    table = Table(
        "replicas",
        "target",
        "in time",
        "replica hours",
        "most",
        title=f"{record.deployment}, {record.trace}, {days}, {requests:,.0f} requests; goal {record.share:.2%} in time",
    )
    for row in _rows(record):
        table.add_row(*row)
    console.print(table)
    if record.target_pending is None:
        console.print(
            f"no target reaches {record.share:.2%} in time: the day asks for more than {record.most} replicas, or "
            "rises faster than replicas start. Raise --max, or keep more replicas with --min.",
            markup=False,
        )
    for line in findings(record):
        console.print(line, markup=False)


def findings(record: ScaleRecord) -> Iterator[str]:
    """Sentences: the replicas at the peak, what the limit hides, and the target that was found."""
    peak = record.peak_per_s / record.curve.capacity.rate_per_s
    yield (
        f"at its peak the day has {record.peak_per_s:,.1f} requests/s, {peak:.2f} times what one replica takes: "
        f"{math.ceil(peak)} replicas and what failures and starts need."
    )
    if record.target_pending is not None:
        yield from _target(record, record.target_pending)


def _target(record: ScaleRecord, found: float) -> Iterator[str]:
    """Sentences about the target that reaches the goal."""
    curve = record.curve
    tried = [run for run in record.tried if run.rule == PENDING]
    hours = statistics.mean(match.replica_hours for match in record.matches(PENDING) or [])
    nearest = max((run.target for run in tried if run.target <= found), default=found)
    most = max(run.outcome.most_replicas for run in tried if run.target == nearest)
    yield (
        f"target_pending = {found:.2f}, steepness = {curve.steepness:.2f} reach the goal on every day, with at most "
        f"{most} replicas at once and {hours:,.1f} replica hours."
    )
    if abs(found - curve.target_pending) >= 0.01 * found:
        share = _share(_at_capacity(record))
        side = "above" if found > curve.target_pending else "below"
        yield (
            f"It is {side} the {curve.target_pending:.2f} in flight at a replica's capacity, since that has "
            f"{share:.2%} in time on these days and the goal is {record.share:.2%}."
        )
    if most >= record.most:
        yield (
            "The replicas are all that it may use (max of the plan, or --max), so it might use more. A larger --max "
            "shows how many."
        )


def _rows(record: ScaleRecord) -> Iterator[tuple[str, ...]]:
    """The target at a replica's capacity; for the goal the cheapest target, and the fewest replicas that stay."""
    at_capacity = _at_capacity(record)
    outcomes = [run.outcome for run in at_capacity]
    yield (
        "by pending requests, at a replica's capacity",
        f"{record.curve.target_pending:.4g}",
        f"{_share(at_capacity):.2%}",
        f"{statistics.mean(outcome.replica_hours for outcome in outcomes):,.1f}",
        str(max(outcome.most_replicas for outcome in outcomes)),
    )
    for title, rule in (("by pending requests, for the goal", PENDING), ("a fixed count, for the goal", FIXED)):
        found = record.matches(rule)
        if found is None:
            yield (title, "none reaches it", "", "", "")
            continue
        target = statistics.mean(match.target for match in found)
        whole = f"{target:.4g}" if rule == PENDING or not target % 1 else f"{math.floor(target)} to {math.ceil(target)}"
        hours = statistics.mean(match.replica_hours for match in found)
        yield (title, whole, f"{record.share:.2%}", f"{hours:,.1f}", "")


def _at_capacity(record: ScaleRecord) -> list[Tried]:
    """The target of a replica's capacity, day by day."""
    return [run for run in record.tried if run.at_capacity]


def _share(tried: Sequence[Tried]) -> float:
    """The share of all their requests in time."""
    return sum(run.outcome.in_time for run in tried) / sum(run.outcome.requests for run in tried)
