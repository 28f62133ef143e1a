"""What the experiments on a cluster say of what their clients saw."""

import json
import random
from typing import Any

import numpy as np
import pytest

from perf.load.timings import FAILED, REQUEST, RIGHT, WRONG, Timings
from perf.studies.cluster import faults, hostile
from perf.studies.cluster.attackers import Target, malformed
from perf.studies.cluster.clients import NS, Counts
from perf.studies.cluster.plans import PlanFile
from serve.cluster import plan_file


def timings(*requests: tuple[float, float, int]) -> Timings:
    """Requests by (due in s, latency in ms, outcome)."""
    rows = [
        (0, number, due * NS, due * NS, 0, 0, (due + ms / 1e3) * NS, outcome)
        for number, (due, ms, outcome) in enumerate(requests)
    ]
    return np.array(rows, dtype=REQUEST)


def test_counts_are_those_of_the_requests() -> None:
    counts = Counts.of(timings((0, 10, RIGHT), (0, 30, RIGHT), (0.5, 900, FAILED), (1, 20, RIGHT), (1, 5, WRONG)))
    assert (counts.requests, counts.failed, counts.wrong) == (5, 1, 1)
    assert (counts.p50_ms, counts.p99_ms, counts.longest_ms) == (20.0, 30.0, 900.0)
    assert counts.per_s == pytest.approx(3 / 1.4, abs=1e-3)


def test_no_requests_have_counts() -> None:
    assert Counts.of(timings()).requests == 0


@pytest.mark.parametrize(("per_s", "slow"), [(10.0, 2.0), (5.0, 0.0)], ids=["slow for two seconds", "never slow"])
def test_the_throughput_is_slow_until_its_last_slow_second(per_s: float, slow: float) -> None:
    done = [*np.arange(0, 2, 0.2), *np.arange(2, 5, 0.1)]
    loaded = timings(*((float(second), 0, RIGHT) for second in done))
    assert faults._slow_s(loaded, 0, per_s) == slow


def test_a_share_in_time_counts_right_answers_only() -> None:
    loaded = timings((0, 40, RIGHT), (0, 41, RIGHT), (0, 10, WRONG), (0, 10, FAILED), (1, 20, RIGHT))
    assert hostile._in_time(loaded, 40.0) == 2 / 5


def test_the_plan_of_an_experiment_is_a_plan(tmp_path: Any) -> None:
    written = PlanFile(model="ranker", config_name=None, tenants=(("web", 8.0),)).write(tmp_path)
    plan = plan_file.read(written)
    assert [entry.models for entry in plan.deployment] == [("ranker",)]
    assert [(tenant.name, tenant.requests_per_s, tenant.burst) for tenant in plan.tenant] == [("web", 8.0, 2)]
    assert plan.tenant[0].token_file.read_text() == PlanFile.token("web")
    assert plan.tenant[0].token_file.stat().st_mode & 0o077 == 0


def test_malformed_bodies_are_of_many_kinds() -> None:
    target = Target(url="localhost:1", model="m", input="x", dims=(2,), headers={})
    bodies = malformed(target, random.Random(1))
    kinds = {bytes(next(bodies)[:20]) for _ in range(300)}
    assert len(kinds) > 15
    assert b"" in kinds
    assert any(kind.startswith(b"{{{{") for kind in kinds)


def test_an_overflowing_shape_is_among_the_malformed_bodies() -> None:
    target = Target(url="localhost:1", model="m", input="x", dims=(2,), headers={})
    bodies = malformed(target, random.Random(1))
    shapes = []
    for _ in range(300):
        try:
            shapes.append(json.loads(next(bodies))["inputs"][0]["shape"])
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    assert [100_000_000_000, 2] in shapes
    assert [-1, 2] in shapes
