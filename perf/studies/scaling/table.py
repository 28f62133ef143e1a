"""The results of the experiment as tables for the pages: pure functions of its records in git."""

import itertools
import statistics

from perf.records import file
from perf.scale.comparison import FIXED
from perf.scale.rules import PENDING, RULES, Rule
from perf.studies.archive import RESULTS
from perf.studies.scaling.__main__ import NAME, SHARES, ScalingRecord, Scenario
from perf.studies.scaling.live import NAME as LIVE
from perf.studies.scaling.live import LiveRecord
from perf.studies.tables import rows_markdown

FOLDER = RESULTS / "scale"


def record() -> ScalingRecord:
    """The days in git."""
    return file.read(FOLDER / NAME, ScalingRecord)


def live_record() -> LiveRecord:
    """The cluster in git."""
    return file.read(FOLDER / LIVE, LiveRecord)


def rules() -> str:
    """Replica hours of each rule over ours at the same share in time, and each rule at its source's target."""
    found = record()
    rows = [
        (
            _title(scenario) if rule is PENDING else "",
            rule.title,
            *_published(found, scenario, rule),
            *(_cell(found, scenario.name, share, rule.name) for share in SHARES),
        )
        for scenario in found.scenarios
        for rule in (*RULES.values(), FIXED)
    ]
    shares = (f"{share:.1%} in time" for share in SHARES)
    return rows_markdown(("deployment", "rule", "its target", "in time", "hours a day", *shares), rows, left=2)


def _title(scenario: Scenario) -> str:
    return f"{scenario.model}, p99 <= {scenario.target_ms:g} ms, starts in {scenario.start_s:g} s"


def _published(found: ScalingRecord, scenario: Scenario, rule: Rule) -> tuple[str, str, str]:
    """The rule at the target of its source."""
    own = [each for each in found.published if (each.scenario, each.rule) == (scenario.name, rule.name)]
    if not own:
        return ("", "", "")
    return (f"{own[0].target:.4g}{rule.unit}", f"{own[0].share:.2%}", f"{own[0].replica_hours:,.0f}")


def _cell(found: ScalingRecord, scenario: str, share: float, rule: str) -> str:
    """Ours in replica hours a day; the others as multiples of it, with the range over the days."""
    hours = [each.replica_hours for each in found.of(scenario, share, rule)]
    known = [each for each in hours if each is not None]
    if len(known) < len(hours):
        return "not reached"
    if rule == PENDING.name:
        return f"{statistics.mean(known):,.0f} h"
    ratios = [ratio for ratio in found.ratios(scenario, share, rule) if ratio is not None]
    if not ratios:
        return f"{statistics.mean(known):,.0f} h"
    return f"x {statistics.mean(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def live() -> str:
    """A cluster of up to three replicas beside the simulation of the same trace."""
    found = live_record()
    row = (
        f"{found.requests:,}",
        found.refused,
        found.failed,
        f"{found.live_in_time:.1%}",
        f"{found.simulated_in_time:.1%}",
        _times(found.live_replicas),
        _times(found.simulated_replicas),
        found.replicas_off,
    )
    titles = (
        "requests",
        "refused",
        "failed",
        "in time",
        "simulated",
        "replicas from second on",
        "simulated",
        "differ by at most",
    )
    return rows_markdown(titles, [row], left=0)


def _times(replicas: tuple[int, ...]) -> str:
    """The seconds at which the count changed, as `1 at 0, 2 at 41`."""
    changes = [
        (0, replicas[0]),
        *((n, now) for n, (before, now) in enumerate(itertools.pairwise(replicas), 1) if now != before),
    ]
    return ", ".join(f"{count} at {second}" for second, count in changes)
