"""How many replicas simulated days take under each rule, as a table and sentences for the terminal."""

import math
import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from perf.scale.comparison import FIXED, Match, Tried, matched
from perf.scale.record import ScaleRecord
from perf.scale.rules import PENDING, RULES, Rule


def show(record: ScaleRecord, console: Console) -> None:
    """Print what one replica can do, and each rule at its own target and at the same share in time."""
    curve = record.curve
    console.print(
        f"{record.deployment}: one replica takes {curve.capacity.rate_per_s:,.1f} requests/s within "
        f"{curve.target_ms:g} ms ({curve.percent:g} %), with {curve.target_pending:.1f} in flight (steepness "
        f"{curve.steepness:.1f}); at most {curve.saturated_per_s:,.1f}/s",
        markup=False,
    )
    requests = sum(run.outcome.requests for run in record.tried if run.rule == PENDING.name and run.is_published)
    days = f"{record.days} day{'s' if record.days > 1 else ''}"
    table = Table(
        "rule",
        "target of its source",
        "in time",
        "replica hours",
        "most",
        "target for the goal",
        "replica hours",
        "x ours",
        title=f"{record.deployment}, {record.trace}, {days}, {requests:,.0f} requests; goal {record.share:.2%} in time",
    )
    for rule in (*RULES.values(), FIXED):
        table.add_row(rule.title, *_cells(record, rule))
    console.print(table)
    if record.target_pending is None:
        console.print(
            f"no target of our rule reaches {record.share:.2%} in time: the day asks for more than {record.most} "
            "replicas, or rises faster than replicas start. Raise --max, or keep more replicas with --min.",
            markup=False,
        )
    for line in findings(record):
        console.print(line, markup=False)


def findings(record: ScaleRecord) -> Iterator[str]:
    """Sentences: the replicas at the peak, what the limit hides, and the target that was found."""
    if record.peak_per_s:
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
    ours = [run for run in record.tried if run.rule == PENDING.name]
    hours = statistics.mean(match.replica_hours for match in matches(record, PENDING.name, record.share) or [])
    nearest = max((run.target for run in ours if run.target <= found), default=found)
    most = max(run.outcome.most_replicas for run in ours if run.target == nearest)
    yield (
        f"target_pending = {found:.2f}, steepness = {curve.steepness:.2f} reach the goal on every day, with at most "
        f"{most} replicas at once and {hours:,.1f} replica hours."
    )
    if abs(found - curve.target_pending) >= 0.01 * found:
        share = _share([run for run in ours if run.is_published])
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


def _cells(record: ScaleRecord, rule: Rule) -> Sequence[str]:
    published = [run for run in record.tried if run.rule == rule.name and run.is_published]
    cells = ["", "", "", ""] if not published else _published(published, rule)
    found = matches(record, rule.name, record.share)
    ours = matches(record, PENDING.name, record.share)
    if found is None:
        return (*cells, "none reaches it", "", "")
    hours = statistics.mean(match.replica_hours for match in found)
    ratio = hours / statistics.mean(match.replica_hours for match in ours) if ours else float("nan")
    target = statistics.mean(match.target for match in found)
    words = f"{target:.4g}{rule.unit}"
    if rule is FIXED and target % 1:
        words = f"{math.floor(target)} to {math.ceil(target)}{rule.unit}"
    return (*cells, words, f"{hours:,.1f}", f"{ratio:.2f}" if ours else "")


def _published(tried: Sequence[Tried], rule: Rule) -> list[str]:
    outcomes = [run.outcome for run in tried]
    hours = statistics.mean(outcome.replica_hours for outcome in outcomes)
    most = max(outcome.most_replicas for outcome in outcomes)
    return [f"{tried[0].target:.4g}{rule.unit}", f"{_share(tried):.2%}", f"{hours:,.1f}", str(most)]


def _share(tried: Sequence[Tried]) -> float:
    """The share of all their requests in time."""
    return sum(run.outcome.in_time for run in tried) / sum(run.outcome.requests for run in tried)


def matches(record: ScaleRecord, rule: str, share: float) -> list[Match] | None:
    """What a rule needs for a share in time, day by day; None if it misses the share on one of them."""
    found = [matched(record.tried, rule, number, share) for number in range(record.days)]
    known = [match for match in found if match is not None]
    return known if len(known) == record.days else None
