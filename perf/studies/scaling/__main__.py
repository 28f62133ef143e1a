"""Replica hours of each scaling rule on generated days, at the same share of requests in time.

`python -m perf.studies.scaling` simulates three deployments on five days each. Every rule is tried at many targets, and
gets the cheapest that reaches the share.
Exit code 1 if a rule of the field needs fewer replica hours than ours on a day.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.progress import Progress

from perf.load.variant import read as read_config
from perf.measure.service_profile import Profile, load
from perf.records import file
from perf.records.study import LatencyTarget
from perf.scale.comparison import FIXED, Tried, compare, matched
from perf.scale.curve import measure
from perf.scale.day import diurnal
from perf.scale.fleet import Conditions
from perf.scale.rules import FIELD, PENDING, RULES
from perf.studies.archive import RESULTS as ARCHIVE
from perf.studies.experiment import Origin, command_line, origin
from triton_batching.options import DAY_S, MOST_REPLICAS, path
from triton_batching.terminal import guarded, program_parser, terminal

RESULTS = Path("perf/results/local/scale")
NAME = "rules.json"
SHARES = (0.99, 0.995, 0.999)
DAYS = 5


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A deployment: its model with a latency target, replicas that the peak would fill, and their start time."""

    name: str
    model: str
    target_ms: float
    peak_replicas: float
    start_s: float


SCENARIOS = (
    Scenario(name="accelerator", model="simulated_accelerator", target_ms=60.0, peak_replicas=30.0, start_s=30.0),
    Scenario(name="ranker", model="ranker", target_ms=75.0, peak_replicas=30.0, start_s=30.0),
    Scenario(name="few, slow start", model="simulated_accelerator", target_ms=60.0, peak_replicas=6.0, start_s=120.0),
)


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a rule needs on a day for a share in time; replica_hours and target are None if no target reaches it."""

    scenario: str
    day: int
    share: float
    rule: str
    replica_hours: float | None
    target: float | None


@dataclass(frozen=True, kw_only=True)
class AsPublished:
    """A rule at the target of its source, over all days of a scenario: share in time, replica hours a day, the most."""

    scenario: str
    rule: str
    target: float
    share: float
    replica_hours: float
    most_replicas: int


@dataclass(frozen=True, kw_only=True)
class ScalingRecord(Origin):
    """All days of all scenarios. requests: how many each scenario simulates."""

    KIND: ClassVar[str] = "scaling_study"
    FORMAT: ClassVar[int] = 1
    scenarios: tuple[Scenario, ...]
    conditions: tuple[Conditions, ...]
    requests: tuple[float, ...]
    needed: tuple[Needed, ...]
    published: tuple[AsPublished, ...]

    def of(self, scenario: str, share: float, rule: str) -> list[Needed]:
        """What the rule needs, day by day."""
        return [each for each in self.needed if (each.scenario, each.share, each.rule) == (scenario, share, rule)]

    def ratios(self, scenario: str, share: float, rule: str) -> list[float | None]:
        """The rule's replica hours over ours, day by day; None where the rule does not reach the share."""
        pairs = zip(self.of(scenario, share, rule), self.of(scenario, share, PENDING.name), strict=True)
        return [
            other.replica_hours / ours.replica_hours if other.replica_hours and ours.replica_hours else None
            for other, ours in pairs
        ]

    @property
    def losses(self) -> list[tuple[Needed, float]]:
        """Where ours misses the share, or a rule of the field needs fewer replica hours, with its hours over ours."""
        found = []
        for scenario in self.scenarios:
            for share in SHARES:
                found += [(each, 0.0) for each in self.of(scenario.name, share, PENDING.name) if not each.replica_hours]
                for rule in FIELD:
                    ratios = self.ratios(scenario.name, share, rule.name)
                    needed = self.of(scenario.name, share, rule.name)
                    found += [(each, ratio) for each, ratio in zip(needed, ratios, strict=True) if ratio and ratio < 1]
        return found


def simulated(scenario: Scenario, conditions: Conditions, progress: Progress, days: int = DAYS) -> list[Tried]:
    """Every rule at every target on every day."""
    record = load(ARCHIVE / "grid" / f"{scenario.model}.default.b32.k1.json")
    target = LatencyTarget(latency_ms=scenario.target_ms)
    curve = measure(read_config(scenario.model, None), Profile(ramps=(record,)), target)
    peak = scenario.peak_replicas * curve.capacity.rate_per_s
    rates = [diurnal(peak, seed=seed).steps(1.0, DAY_S) for seed in range(days)]
    task = progress.add_task(scenario.name, total=int(DAY_S / conditions.sync_s))
    return compare(curve, rates, conditions, least=1, most=MOST_REPLICAS, tick=lambda: progress.advance(task))


def needed(scenario: Scenario, tried: Sequence[Tried]) -> list[Needed]:
    """What each rule needs on each day for each share."""
    rows = []
    for share in SHARES:
        for rule in (*RULES.values(), FIXED):
            for day in sorted({each.day for each in tried}):
                match = matched(tried, rule.name, day, share)
                rows.append(
                    Needed(
                        scenario=scenario.name,
                        day=day,
                        share=share,
                        rule=rule.name,
                        replica_hours=round(match.replica_hours, 2) if match else None,
                        target=round(match.target, 4) if match else None,
                    )
                )
    return rows


def as_published(scenario: Scenario, tried: Sequence[Tried]) -> list[AsPublished]:
    """Each rule at the target of its source."""
    rows = []
    for rule in RULES.values():
        own = [each for each in tried if each.rule == rule.name and each.is_published]
        outcomes = [each.outcome for each in own]
        rows.append(
            AsPublished(
                scenario=scenario.name,
                rule=rule.name,
                target=round(own[0].target, 4),
                share=round(sum(each.in_time for each in outcomes) / sum(each.requests for each in outcomes), 6),
                replica_hours=round(statistics.mean(each.replica_hours for each in outcomes), 2),
                most_replicas=max(each.most_replicas for each in outcomes),
            )
        )
    return rows


def run(results: Path, command: Sequence[str]) -> int:
    """Simulate all scenarios, write the record and print where a rule of the field is better."""
    file.check_folder(results)
    conditions = tuple(Conditions(start_s=scenario.start_s, mtbf_s=7.0 * DAY_S) for scenario in SCENARIOS)
    rows: list[Needed] = []
    published: list[AsPublished] = []
    requests = []
    with Progress(console=terminal(), transient=True) as progress:
        for scenario, condition in zip(SCENARIOS, conditions, strict=True):
            tried = simulated(scenario, condition, progress)
            rows += needed(scenario, tried)
            published += as_published(scenario, tried)
            ours = [each for each in tried if each.rule == PENDING.name and each.is_published]
            requests.append(round(sum(each.outcome.requests for each in ours)))
    record = ScalingRecord(
        **origin(command),
        scenarios=SCENARIOS,
        conditions=conditions,
        requests=tuple(requests),
        needed=tuple(rows),
        published=tuple(published),
    )
    terminal().print(f"written: {file.write(record, results / NAME)}", markup=False)
    for each, ratio in record.losses:
        told = (
            f"{each.rule} needs {ratio:.3f} x the replica hours of ours" if ratio else "ours does not reach the share"
        )
        terminal().print(f"{each.scenario}, day {each.day}, {each.share:.1%}: {told}", markup=False)
    return int(bool(record.losses))


def main(argv: list[str] | None = None) -> int:
    """Run the experiment; exit code 1 if a rule of the field needs fewer replica hours somewhere."""
    parser = program_parser("python -m perf.studies.scaling", __doc__, example="--results perf/results/local/scale")
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: run(arguments.results, command_line("scaling", argv)))


if __name__ == "__main__":
    sys.exit(main())
