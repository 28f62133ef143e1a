"""The study of packers: its problems with a known optimum, and its record."""

import json
from pathlib import Path

import pytest

from perf.pack import exact
from perf.pack.algorithms import ALGORITHMS
from perf.pack.heuristics import best_fit_decreasing
from perf.studies.packing import __main__ as study
from perf.studies.packing import instances

RECORD = Path("perf/studies/results/pack") / study.NAME


def test_triplets_are_closed_at_30_items() -> None:
    pytest.importorskip("ortools")
    problem = instances.triplets(0, 10)
    assert len(best_fit_decreasing(problem)) > 10
    answer = exact.fewest(problem, time_limit_s=30.0)
    assert len(answer.bins) == answer.bound == 10
    assert all(sum(problem.sizes[item] for item in items) == 1000 for items in answer.bins)


def test_greedy_is_near_exact_and_the_improvement_closes_the_gap() -> None:
    # The instances of the first hundred where squishy is above exact, by the record, and some where it is not.
    record = json.loads(RECORD.read_text())
    above = [
        workload["seed"]
        for workload in record["workloads"]
        if workload["devices"]["squishy"] > workload["devices"]["exact"]
    ]
    results = [study.packed(seed, ("squishy", "improved", "exact")) for seed in (*above[:6], 0, 1, 2)]
    assert sum(result.devices["squishy"] > result.devices["exact"] for result in results) >= 6
    assert study.closed([result.devices for result in results]) >= 0.5
    assert sum(result.violations + result.late for result in results) == 0


def test_the_record_of_a_hundred_workloads() -> None:
    record = json.loads(RECORD.read_text())
    devices = [workload["devices"] for workload in record["workloads"]]
    assert len(devices) == 100
    assert max(workload["models"] for workload in record["workloads"]) == 11
    total = {name: sum(counts[name] for counts in devices) for name in ALGORITHMS}
    assert total["exact"] < total["squishy"] <= 1.10 * total["exact"]
    assert study.closed(devices) >= 0.5
    assert sum(workload["violations"] + workload["late"] for workload in record["workloads"]) == 0
    for plain in record["plain"]:
        assert plain["bound"] <= plain["bins"]["exact"] <= min(plain["bins"].values())
        assert plain["optimum"] is None or plain["bound"] <= plain["optimum"] <= plain["bins"]["exact"]
