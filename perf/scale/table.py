"""What simulated days cost under each rule, as a table for the terminal."""

import statistics
from collections.abc import Sequence

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
    else:
        console.print(
            f"target_pending = {record.target_pending:.2f}, steepness = {curve.steepness:.2f} reach it on every day",
            markup=False,
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
    return (*cells, f"{target:.4g}{rule.unit}", f"{hours:,.1f}", f"{ratio:.2f}" if ours else "")


def _published(tried: Sequence[Tried], rule: Rule) -> list[str]:
    outcomes = [run.outcome for run in tried]
    share = sum(outcome.in_time for outcome in outcomes) / sum(outcome.requests for outcome in outcomes)
    hours = statistics.mean(outcome.replica_hours for outcome in outcomes)
    most = max(outcome.most_replicas for outcome in outcomes)
    return [f"{tried[0].target:.4g}{rule.unit}", f"{share:.2%}", f"{hours:,.1f}", str(most)]


def matches(record: ScaleRecord, rule: str, share: float) -> list[Match] | None:
    """What a rule needs for a share in time, day by day; None if it misses the share on one of them."""
    found = [matched(record.tried, rule, number, share) for number in range(record.days)]
    known = [match for match in found if match is not None]
    return known if len(known) == record.days else None
