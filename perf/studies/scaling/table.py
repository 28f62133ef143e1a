"""The results of the experiment as tables for the pages: pure functions of its records in git."""

import statistics

from perf.records import file
from perf.scale.comparison import FIXED
from perf.scale.rules import PENDING, RULES, Rule
from perf.studies.archive import RESULTS
from perf.studies.scaling.__main__ import NAME, SHARES, ScalingRecord, Scenario
from perf.studies.tables import rows_markdown

FOLDER = RESULTS / "scale"


def record() -> ScalingRecord:
    """The days in git."""
    return file.read(FOLDER / NAME, ScalingRecord)


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
