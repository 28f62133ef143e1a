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
from triton_batching.machine import Machine
from triton_batching.terminal import Failure, terminal

WINDOW_S, POLL_S = 2.0, 0.2
START_S, UPDATE_S = 300.0, 3600.0
# Caches of new replicas are cold.
WARM_UP_S = 5.0
CANARY, CONTROL = "canary", "control"


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 if the configuration is deployed, 1 if not."""
    file.check_folder(arguments.results)
    cluster = place.chosen(arguments.plan)
    deployment = _deployment(_status(cluster), arguments.deployment)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    canary, opponent = _windows(cluster, deployment, arguments)
    verdict = judge(canary, opponent, tolerance=arguments.tolerance)
    record = DeployRecord(
        machine=Machine.this(),
        started_at=started_at,
        deployment=deployment.name,
        old=deployment.config_name,
        new=arguments.config_name,
        share=arguments.canary,
        tolerance=arguments.tolerance,
        window_s=WINDOW_S,
        canary=tuple(canary),
        control=tuple(opponent),
        verdict=verdict,
    )
    path = record.write(arguments.results)
    terminal().print(
        f"{_file(arguments.config_name)}: {verdict.outcome}: {verdict.reason}. Record: {path}", markup=False
    )
    return _conclude(cluster, deployment, arguments.config_name, verdict)


def _windows(
    cluster: Place, deployment: DeploymentStatus, arguments: argparse.Namespace
) -> tuple[list[Window], list[Window]]:
    """The windows of the canary and of the control; both are gone after an error or Ctrl-C."""
    name = deployment.name
    begin = control.Canary(deployment=name, config_name=arguments.config_name, share=arguments.canary)
    with terminal().status(f"{_file(arguments.config_name)}: the canary starts") as status:
        control.ask(cluster, begin)
        with _abandoned_after_errors(cluster, name):
            _await(cluster, lambda now: len(_pair(now, name)) == 2, START_S, "canary and control", name)
            status.update(f"{_file(arguments.config_name)}: the canary warms up")
            time.sleep(WARM_UP_S)
            return _measured(cluster, name, arguments.seconds, status.update)


@contextlib.contextmanager
def _abandoned_after_errors(cluster: Place, deployment: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            control.ask(cluster, control.Abandon(deployment=deployment))
        raise


def _measured(
    cluster: Place, deployment: str, seconds: float, progress: Callable[[str], None]
) -> tuple[list[Window], list[Window]]:
    """Windows of both replicas, one after the other for `seconds` seconds; fewer if one of them ends."""
    windows: dict[str, list[Window]] = {CANARY: [], CONTROL: []}
    before, end = _read(_pair(_status(cluster), deployment)), time.monotonic() + seconds
    while time.monotonic() < end and len(before) == 2:
        time.sleep(WINDOW_S)
        after = _read(_pair(_status(cluster), deployment))
        for role in after:
            windows[role].append(_window(before[role], after[role]))
        before = after
        counts = ", ".join(f"{role} {sum(each.requests for each in windows[role]):,} requests" for role in windows)
        progress(f"{deployment}: {counts}, {max(0.0, end - time.monotonic()):.0f} s left")
    if len(before) < 2:
        raise Failure(f"{deployment}: {_deployment(_status(cluster), deployment).canary or 'the canary ended'}.")
    return windows[CANARY], windows[CONTROL]


Reading = tuple[ReplicaStatus, Counters]


def _read(pair: dict[str, ReplicaStatus]) -> dict[str, Reading]:
    """What the server of each replica has counted."""
    return {
        role: (replica, Counters.read(f"{replica.host}:{replica.grpc_port}", replica.models[0]))
        for role, replica in pair.items()
    }


def _window(before: Reading, after: Reading) -> Window:
    counted = after[1].since(before[1])
    return Window(
        requests=after[0].requests - before[0].requests,
        failures=after[0].failures - before[0].failures,
        answered=counted.requests,
        server_ns=counted.queue_ns + counted.compute_ns,
    )


def _conclude(cluster: Place, deployment: DeploymentStatus, config_name: str | None, verdict: Verdict) -> int:
    name = deployment.name
    if verdict.outcome != NOT_WORSE:
        control.ask(cluster, control.Abandon(deployment=name))
        hint = " Send more requests, or measure for longer (--seconds)." if verdict.outcome == CANNOT_TELL else ""
        terminal().print(f"{name} keeps {_file(deployment.config_name)}.{hint}", markup=False)
        return 1
    with terminal().status(f"{name}: its replicas are replaced one by one"):
        control.ask(cluster, control.Promote(deployment=name))
        after = _await(cluster, lambda now: not _deployment(now, name).updating, UPDATE_S, "the update", name)
    result = _deployment(after, name)
    if result.config_name != config_name:
        raise Failure(f"{name}: the update {result.update}")
    terminal().print(f"{name}: {result.ready} replicas with {_file(config_name)}.", markup=False)
    return 0


def _await(cluster: Place, holds: Callable[[Status], bool], most_s: float, what: str, deployment: str) -> Status:
    """The first status that `holds`; raises `Failure` after `most_s`, or if the canary is given up."""
    end = time.monotonic() + most_s
    while not holds(status := _status(cluster)):
        found = _deployment(status, deployment)
        if found.canary_failed or found.gave_up:
            raise Failure(f"{deployment}: {found.canary_failed or found.gave_up}")
        if time.monotonic() > end:
            raise Failure(f"{deployment}: {what} took longer than {most_s:g} s. Nothing has changed.")
        time.sleep(POLL_S)
    return status


def _status(cluster: Place) -> Status:
    status = control.ask(cluster, control.Look()).status
    assert status is not None
    return status


def _deployment(status: Status, name: str) -> DeploymentStatus:
    """The deployment with this name or this model; the cluster itself refuses another name."""
    named = [each for each in status.deployments if each.name == name]
    return next(iter(named or [each for each in status.deployments if name in each.models] or status.deployments))


def _pair(status: Status, deployment: str) -> dict[str, ReplicaStatus]:
    """The canary and its control by role, once they are ready."""
    return {
        replica.role: replica
        for replica in status.replicas
        if replica.role and replica.deployment == deployment and replica.phase == "ready"
    }


def _file(config_name: str | None) -> str:
    return f"{config_name}.pbtxt" if config_name else "config.pbtxt"
