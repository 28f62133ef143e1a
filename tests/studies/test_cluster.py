"""The experiments with a cluster: their plan is one that starts, and their gates count what clients saw."""

from pathlib import Path

import numpy as np

from perf.load.timings import FAILED, RIGHT, WRONG
from perf.studies.cluster import faults, hostile
from perf.studies.cluster.clients import NS, Counts
from perf.studies.cluster.plans import PlanFile
from serve.cluster import plan_file
from serve.cluster.plan_check import check

# When requests were due, when they ended (in ms), and how.
REQUESTS = ((0, 40, RIGHT), (10, 30, RIGHT), (20, 620, RIGHT), (30, 40, WRONG), (40, 50, FAILED))


def timings() -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    made = np.zeros(len(REQUESTS), dtype=[("due", "i8"), ("done", "i8"), ("outcome", "i8")])
    for place, (due_ms, done_ms, outcome) in enumerate(REQUESTS):
        made[place] = due_ms * 1_000_000, done_ms * 1_000_000, outcome
    return made


def test_the_plan_starts_with_its_tenants(tmp_path: Path) -> None:
    tenants = hostile.tenants(100.0)
    plan = PlanFile(model="simulated_accelerator", config_name="dynamic", tenants=tenants).write(tmp_path)
    door, metrics_port = check(plan_file.read(plan), str(plan))
    assert [(tenant.name, tenant.token) for tenant in door.tenants] == [
        (name, PlanFile.token(name)) for name, _ in tenants
    ]
    assert len({door.http_port, door.grpc_port, metrics_port}) == 3


def test_outcomes_are_counted() -> None:
    counts = Counts.of(timings())
    assert (counts.requests, counts.wrong, counts.failed, counts.longest_ms) == (5, 1, 1, 600.0)
    assert hostile._in_time(timings(), 40.0) == 2 / 5


def test_the_last_slow_second_after_a_fault_is_found() -> None:
    """Ten answers a second before the fault; then 4, 10 and 5, and 10 again."""
    done = [second + place / 10 for second, many in enumerate((4, 10, 5, 10, 10)) for place in range(many)]
    made = np.zeros(len(done), dtype=[("done", "i8"), ("outcome", "i8")])
    made["done"], made["outcome"] = np.array(done) * NS, RIGHT
    assert faults._slow_s(made, 0, 10.0) == 3.0
