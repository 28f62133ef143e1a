"""Runs a canary beside its control, judges it, and deploys the configuration or goes back."""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

from perf.deploy.reading import Reading
from perf.deploy.record import DeployRecord
from perf.deploy.verdict import CANNOT_TELL, NOT_WORSE, Verdict, Window, fails_more, judge
from perf.records import file
from serve.cluster import control, place
from serve.cluster.canary import CANARY, CONTROL, ROLES
from serve.cluster.place import Place
from serve.cluster.status import DeploymentStatus, ReplicaStatus, Status
from serve.management.api import ServerError
from triton_batching.machine import Machine
from triton_batching.terminal import Failure, Mistake, terminal

WINDOW_S, POLL_S = 2.0, 0.2
# The cluster itself ends a canary that does not start, so START_S is for the slowest models.
START_S, UPDATE_S = 900.0, 3600.0
# Caches of new replicas are cold.
WARM_UP_S = 5.0
# For the cluster's limit: reading the counters, judging, writing.
SLACK_S = 60.0
# A line for each so many windows, and not many more lines than that.
STEP, MOST_LINES = 5, 12
# The cluster notices within this time that a replica has died.
NOTICED_S = 5.0
Windows = dict[str, list[Window]]


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 if the configuration is deployed, 1 if not."""
    file.check_folder(arguments.results)
    cluster = place.chosen(arguments.plan)
    if not arguments.plan:
        terminal().print(f"{cluster.name}: the only cluster that runs (--plan names another)", markup=False)
    deployment = _deployment(_status(cluster), arguments.deployment)
    if deployment.config_name == arguments.config_name:
        raise Mistake(
            f"{deployment.name}: has {_file(arguments.config_name)} already. For new files of its models: "
            f"triton-batching cluster update {deployment.name}"
        )
    begin = control.Canary(
        deployment=deployment.name,
        config_name=arguments.config_name,
        share=arguments.canary,
        most_s=START_S + WARM_UP_S + arguments.seconds + SLACK_S,
    )
    with _begun(cluster, begin):
        verdict = _judged(cluster, deployment, arguments)
        return _conclude(cluster, deployment, arguments.config_name, verdict)


@contextlib.contextmanager
def _begun(cluster: Place, begin: control.Canary) -> Iterator[None]:
    """Begin the canary, and let it go after an error or Ctrl-C; a canary that is promoted stays."""
    is_refused = False
    try:
        try:
            control.ask(cluster, begin)
        except Mistake:  # if a canary runs, it is another's
            is_refused = True
            raise
        yield
    except BaseException:
        if not is_refused:
            with contextlib.suppress(Exception):
                _abandon(cluster, begin.deployment)
        raise


def _abandon(cluster: Place, deployment: str) -> None:
    with contextlib.suppress(Mistake):  # the cluster has done it
        control.ask(cluster, control.Abandon(deployment=deployment))


def _judged(cluster: Place, deployment: DeploymentStatus, arguments: argparse.Namespace) -> Verdict:
    """The verdict on the canary that starts; it is printed and written."""
    started_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    windows = _windows(cluster, deployment.name, arguments.seconds)
    verdict = judge(windows[CANARY], windows[CONTROL], tolerance=arguments.tolerance)
    record = DeployRecord(
        machine=Machine.this(),
        started_at=started_at,
        deployment=deployment.name,
        old=deployment.config_name,
        new=arguments.config_name,
        share=arguments.canary,
        tolerance=arguments.tolerance,
        window_s=WINDOW_S,
        canary=tuple(windows[CANARY]),
        control=tuple(windows[CONTROL]),
        verdict=verdict,
    )
    path = record.write(arguments.results)
    said = f"{_file(arguments.config_name)}: {verdict.outcome}: {verdict.reason}. Record: {path}"
    terminal().print(said, markup=False)
    return verdict


def _windows(cluster: Place, name: str, seconds: float) -> Windows:
    """What the canary and the control did in each window, by role."""
    say = partial(terminal().print, markup=False)
    say(f"{name}: the canary and its control start")
    with terminal().status(f"{name}: the canary and its control start") as status:
        _await(cluster, lambda now: len(_pair(now, name)) == len(ROLES), START_S, "the start of the canary", name)
        say(f"{name}: both are ready, and are compared after {WARM_UP_S:g} s")
        status.update(f"{name}: the canary and its control warm up")
        time.sleep(WARM_UP_S)
        return _measured(cluster, name, seconds, progress=status.update, say=say)


def _measured(
    cluster: Place, name: str, seconds: float, *, progress: Callable[[str], None], say: Callable[[str], None]
) -> Windows:
    """The windows; `progress` gets a text for each, and `say` a few of them, which stay."""
    windows: Windows = {CANARY: [], CONTROL: []}
    before, looks = _read(cluster, name), int(seconds / WINDOW_S)
    step = max(STEP, looks // MOST_LINES)
    for number in range(1, looks + 1):
        time.sleep(WINDOW_S)
        after = _read(cluster, name)
        for role in ROLES:
            windows[role].append(after[role].since(before[role]))
        before = after
        if fails_more(windows[CANARY], windows[CONTROL], looks=looks):
            break  # clients need not see more of it
        counts = ", ".join(f"{role} {sum(each.requests for each in windows[role]):,} requests" for role in windows)
        text = f"{name}: window {number} of {looks}: {counts}"
        progress(f"{text}, {(looks - number) * WINDOW_S:.0f} s left")
        if number % step == 0:
            say(f"{text}{_so_far(windows)}")
    return windows


def _so_far(windows: Windows) -> str:
    """How long a request takes at the canary, for a line of progress; "" with too few requests."""
    ratios = judge(windows[CANARY], windows[CONTROL], tolerance=0.0).ratios
    return "".join(f"; {model} takes {ratio} times as long so far" for model, ratio in ratios.items())


def _read(cluster: Place, name: str) -> dict[str, Reading]:
    """What both have counted; raises `Failure` if one of them has ended."""
    try:
        pair = _pair(_status(cluster), name)
        return {role: Reading.of(pair[role]) for role in ROLES}
    except (ServerError, KeyError) as error:
        end = time.monotonic() + NOTICED_S
        while not (why := _deployment(_status(cluster), name).canary_failed) and time.monotonic() < end:
            time.sleep(POLL_S)
        lost = error if isinstance(error, ServerError) else "the canary or its control has ended"
        raise Failure(f"{name}: {why or lost}") from error


def _conclude(cluster: Place, deployment: DeploymentStatus, config_name: str | None, verdict: Verdict) -> int:
    name = deployment.name
    if verdict.outcome != NOT_WORSE:
        _abandon(cluster, name)
        hint = " Send more requests, or measure for longer (--seconds)." if verdict.outcome == CANNOT_TELL else ""
        terminal().print(f"{name} keeps {_file(deployment.config_name)}.{hint}", markup=False)
        return 1
    terminal().print(f"{name}: its replicas are replaced one by one", markup=False)
    with terminal().status(f"{name}: its replicas are replaced one by one"):
        try:
            control.ask(cluster, control.Promote(deployment=name))
        except Mistake as gone:  # the canary has ended since
            raise Failure(str(gone)) from gone
        after = _await(cluster, lambda now: not _deployment(now, name).updating, UPDATE_S, "the update", name)
    result = _deployment(after, name)
    if not result.update.startswith("done"):
        raise Failure(f"{name}: the update {result.update}")
    terminal().print(f"{name}: {result.ready} replicas with {_file(config_name)}.", markup=False)
    return 0


def _await(cluster: Place, holds: Callable[[Status], bool], most_s: float, what: str, name: str) -> Status:
    """The first status that `holds`; raises `Failure` after `most_s`, or if the cluster gives up."""
    end = time.monotonic() + most_s
    while not holds(status := _status(cluster)):
        found = _deployment(status, name)
        if why := found.canary_failed or found.gave_up:
            raise Failure(f"{name}: {why}")
        if time.monotonic() > end:
            raise Failure(f"{name}: {what} took longer than {most_s:g} s. See: triton-batching cluster status")
        time.sleep(POLL_S)
    return status


def _status(cluster: Place) -> Status:
    status = control.ask(cluster, control.Look()).status
    assert status is not None
    return status


def _deployment(status: Status, name: str) -> DeploymentStatus:
    """The deployment with this name, or with this model; raises `Mistake`."""
    named = [each for each in status.deployments if each.name == name]
    if found := named or [each for each in status.deployments if name in each.models]:
        return found[0]
    there = ", ".join(each.name for each in status.deployments)
    raise Mistake(f"{name}: no such deployment or model. There are: {there}.")


def _pair(status: Status, name: str) -> dict[str, ReplicaStatus]:
    """The canary and its control by role, once they are ready."""
    return {
        replica.role: replica
        for replica in status.replicas
        if replica.role and replica.deployment == name and replica.phase in ("ready", "unready")
    }


def _file(config_name: str | None) -> str:
    return f"{config_name}.pbtxt" if config_name else "config.pbtxt"
