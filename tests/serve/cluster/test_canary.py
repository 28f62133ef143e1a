"""A canary and its control beside the replicas of a deployment; the engine's states are set by the test."""

from collections.abc import Iterator

import pytest
from cluster_bench import NEW, Bench, benched

from serve.cluster.canary import Canary


@pytest.fixture
def bench() -> Iterator[Bench]:
    with benched() as running:
        yield running


@pytest.mark.parametrize(
    ("share", "ordinary", "weight"), [(0.1, 2, 25), (0.1, 8, 100), (0.45, 2, 100), (0.001, 1, 1), (0.2, 0, 1)]
)
def test_weight_gives_the_share_and_at_most_that_of_an_ordinary_replica(
    share: float, ordinary: int, weight: int
) -> None:
    canary = Canary(config_name=None, share=share, generation=1)
    assert canary.weight(ordinary) == weight
    if 1 < weight < 100:
        assert canary.gets(ordinary) == pytest.approx(share)


def test_canary_and_control_get_their_share_when_both_are_ready(bench: Bench) -> None:
    before = bench.group.remembered()
    bench.begin()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic", "a-3 canary": NEW, "a-4 control": "dynamic"}
    bench.engine.ready("a-3")
    bench.tick()
    assert bench.weights() == {"a-1": 100, "a-2": 100}
    bench.engine.ready("a-4")
    bench.tick()
    assert bench.weights() == {"a-1": 100, "a-2": 100, "a-3": 25, "a-4": 25}
    status = bench.group.status()
    assert (status.desired, status.ready, status.canary, status.canary_failed) == (2, 2, NEW, "")
    bench.group.scale(4)
    bench.settle()
    assert bench.weights() == {**dict.fromkeys(("a-1", "a-2", "a-5", "a-6"), 100), "a-3": 50, "a-4": 50}
    after = bench.group.remembered()
    assert (after.replicas, after.config_name, before.config_name) == (4, "dynamic", "dynamic")


def test_promoted_canary_is_one_of_the_updated_replicas(bench: Bench) -> None:
    bench.begin()
    bench.settle()
    bench.group.promote()
    assert bench.weights() == {"a-1": 100, "a-2": 100, "a-3": 100}
    assert bench.group.remembered().config_name == "dynamic"
    least = 2
    while bench.group.is_updating:
        bench.tick()
        least = min(least, len(bench.group.ready()))
        bench.settle()
    assert least == 2
    assert bench.configurations() == {"a-3": NEW, "a-5": NEW}
    assert bench.group.status().update == f"done: 2 replicas with {NEW}"
    assert bench.group.remembered().config_name == NEW


def test_abandoned_canary_leaves_the_others_as_they_are(bench: Bench) -> None:
    bench.begin()
    bench.settle()
    bench.group.abandon()
    assert bench.weights() == {"a-1": 100, "a-2": 100}
    bench.settle()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic"}
    status = bench.group.status()
    assert (status.canary, status.canary_failed, status.deaths, status.drained) == (None, "", 0, 0)
    assert [line[10:] for line in bench.lines[-2:]] == [
        "a-3: stopped (the canary is abandoned)",
        "a-4: stopped (its canary is abandoned)",
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a-3", "a-3 (the canary) died: tritonserver was killed by SIGKILL"),
        ("a-4", "a-4 (the control) died: tritonserver was killed by SIGKILL"),
        ("", "a-3 (the canary): a process of 'm' died"),
    ],
    ids=["canary", "control", "problem"],
)
def test_cluster_abandons_a_canary(bench: Bench, name: str, why: str) -> None:
    bench.begin()
    bench.settle()
    if name:
        bench.engine.end(name, "tritonserver was killed by SIGKILL")
    else:
        bench.engine.ready("a-3", "a process of 'm' died")
    bench.tick()
    assert bench.weights() == {"a-1": 100, "a-2": 100}
    bench.settle()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic"}
    status = bench.group.status()
    assert (status.canary, status.canary_failed) == (None, f"the canary with {NEW} is abandoned: {why}")
    assert (status.deaths, status.gave_up) == (1, "")
    assert any(status.canary_failed in line for line in bench.lines)
    bench.begin()
    assert bench.group.status().canary_failed == ""


def test_canary_that_does_not_start_is_tried_twice(bench: Bench) -> None:
    bench.begin()
    bench.engine.ready("a-4")
    bench.engine.end("a-3", "it does not start")
    bench.tick()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic", "a-4 control": "dynamic", "a-5 canary": NEW}
    bench.engine.end("a-5", "it does not start")
    bench.settle()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic"}
    assert bench.group.status().canary_failed.endswith("a-5 (the canary) did not start: it does not start")
    # Its deaths do not delay the others.
    bench.engine.end("a-1", "it ended")
    bench.tick()
    assert "a-6" in bench.configurations()
