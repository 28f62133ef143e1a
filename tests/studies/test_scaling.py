"""The experiment of scaling: its records in git meet the gates, and a small one is made anew."""

from rich.progress import Progress

from perf.scale.fleet import Conditions
from perf.scale.rules import FIELD, PENDING
from perf.studies.scaling import table
from perf.studies.scaling.__main__ import DAYS, SHARES, Scenario, as_published, needed, simulated
from perf.studies.scaling.live import MOST_REPLICAS_OFF, MOST_SHARE_OFF


def test_ours_needs_fewer_replica_hours_than_each_rule_of_the_field_on_every_day() -> None:
    record = table.record()
    assert not record.losses
    for scenario in record.scenarios:
        for share in SHARES:
            hours = [each.replica_hours for each in record.of(scenario.name, share, PENDING.name)]
            assert len(hours) == DAYS >= 5
            assert all(hours)
            for rule in FIELD:
                ratios = record.ratios(scenario.name, share, rule.name)
                assert all(ratio is None or ratio > 1 for ratio in ratios)


def test_the_cluster_did_what_its_simulation_says() -> None:
    record = table.live_record()
    assert record.requests >= 2000
    assert record.failed == 0
    assert record.replicas_off_at_once <= MOST_REPLICAS_OFF
    assert record.share_off <= MOST_SHARE_OFF
    assert max(record.live_replicas) == 3


def test_the_experiment_finds_what_its_record_says() -> None:
    """One day of the smallest scenario, in coarse decisions: the same order of the rules."""
    scenario = Scenario(name="small", model="simulated_accelerator", target_ms=60, peak_replicas=6, start_s=30)
    with Progress(disable=True) as progress:
        tried = simulated(scenario, Conditions(start_s=30.0, sync_s=60.0), progress, days=1)
    hours = {each.rule: each.replica_hours for each in needed(scenario, tried) if each.share == 0.999}
    ours = hours.pop(PENDING.name)
    assert ours is not None
    assert all(hours[rule.name] is None or ours < (hours[rule.name] or 0) for rule in FIELD)
    published = {each.rule: each for each in as_published(scenario, tried)}
    assert published["queue"].replica_hours > 10 * published["pending"].replica_hours
