"""Runs a canary beside its control, judges it, and deploys the configuration or goes back."""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator

from perf.deploy.record import DeployRecord
from perf.deploy.verdict import CANNOT_TELL, NOT_WORSE, Verdict, Window, judge
from perf.records import file
from serve.cluster import control, place
from serve.cluster.place import Place
from serve.cluster.status import DeploymentStatus, ReplicaStatus, Status
from serve.management.statistics import Counters
from triton_batching.machine import Machine, now
from triton_batching.terminal import Failure, terminal

WINDOW_S, POLL_S, START_S = 2.0, 0.2, 180.0
# Caches of new replicas are cold, and their first requests pay for it.
WARM_UP_S = 5.0
UPDATE_S = 3600.0
ROLES = ("canary", "control")
Reading = tuple[ReplicaStatus, Counters]


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 if the configuration is deployed, 1 if not."""
    file.check_folder(arguments.results)
    cluster = place.find(arguments.plan)
    console, started_at = terminal(), now()
    deployment = _deployment(_status(cluster), arguments.deployment)
    new = arguments.config_name or "config.pbtxt"
    with _canary(cluster, deployment.name, arguments), console.status(f"{new}: the canary starts") as status:
        _await(cluster, deployment.name, lambda after: _are_ready(after, deployment.name), START_S, new)
        status.update(f"{new}: the canary warms up")
        time.sleep(WARM_UP_S)
        windows = _measure(cluster, deployment, arguments.seconds, status.update)
        verdict = judge(*windows, tolerance=arguments.tolerance)
    record = DeployRecord(
        machine=Machine.this(),
        started_at=started_at,
        deployment=deployment.name,
        old=deployment.config_name,
        new=arguments.config_name,
        share=arguments.canary,
        tolerance=arguments.tolerance,
        window_s=WINDOW_S,
        canary=windows[0],
        control=windows[1],
        verdict=verdict,
    )
    written = record.write(arguments.results)
    console.print(f"{new}: {verdict.outcome}. {verdict.reason}. The record is {written}.", markup=False)
    if verdict.outcome != NOT_WORSE:
        why = " Send more requests, or take longer (--seconds)." if verdict.outcome == CANNOT_TELL else ""
        console.print(f"{deployment.name} keeps {deployment.config_name or 'config.pbtxt'}.{why}", markup=False)
        return 1
    return _deploy(cluster, deployment.name, arguments.config_name)
