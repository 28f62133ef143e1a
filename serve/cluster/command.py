"""What `python -m serve.cluster` does: runs a cluster, or tells a running one what to do and waits until it is done."""

import argparse
import time

import msgspec

from serve.cluster import place, plan_file
from serve.cluster.control import Abandon, Command, Down, Drain, Look, Scale, Update, ask
from serve.cluster.place import Place
from serve.cluster.status import NOBODY, DeploymentStatus, Status
from serve.cluster.status_table import print_status
from triton_batching.terminal import Failure, Mistake, terminal

POLL_S = 0.3
LEAVING = ("draining", "stopping")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line says; the exit code."""
    if arguments.verb == "up":
        from serve.cluster.up import up

        up(
            plan_file.read(arguments.plan),
            place.of_plan(arguments.plan),
            engine=arguments.engine,
            fresh=arguments.fresh,
        )
        return 0
    where = _place(arguments)
    if arguments.verb == "down":
        _down(where)
    elif arguments.verb == "abandon":
        terminal().print(f"{ask(where, Abandon(deployment=arguments.deployment)).text}.", markup=False)
    elif arguments.verb == "status":
        _status(where, as_json=arguments.json)
    else:
        _change(where, arguments)
    return 0


def _place(arguments: argparse.Namespace) -> Place:
    """The cluster that is meant; says which one if no plan names it. `down` needs a name."""
    if arguments.verb == "down":
        if plan := arguments.plan or arguments.there:
            return place.chosen(plan)
        names = ", ".join(each.name for each in place.running()) or "none"
        raise Mistake(f"down: name the cluster that is to end, with --plan. Running: {names}.")
    where = place.chosen(arguments.plan)
    if not arguments.plan and arguments.verb != "status":
        terminal().print(f"{where.name}: the only cluster that runs (--plan names another)", markup=False)
    return where


def _status(where: Place, *, as_json: bool) -> None:
    status = _look(where)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(status)).decode())
    else:
        print_status(status)


def _look(where: Place) -> Status:
    status = ask(where, Look()).status
    assert status is not None
    return status


def _down(where: Place) -> None:
    if not place.is_taken(where):
        had_state = where.state.exists()
        place.forget(where)
        forgotten = "; its state is forgotten." if had_state else "."
        terminal().print(f"{where.name}: its cluster did not run{forgotten}", markup=False)
        return
    ask(where, Down())
    with terminal().status("the replicas answer their requests and stop"):
        while place.is_taken(where):
            time.sleep(POLL_S)
    terminal().print(f"{where.name}: its cluster has ended.", markup=False)


def _change(where: Place, arguments: argparse.Namespace) -> None:
    """Scale, drain or update, and wait until it is done."""
    command: Command
    if arguments.verb == "scale":
        command = Scale(deployment=arguments.deployment, replicas=arguments.replicas)
    elif arguments.verb == "drain":
        command = Drain(replica=arguments.replica)
    else:
        keeps = arguments.config_name is None
        command = Update(deployment=arguments.deployment, config_name=arguments.config_name, keeps_config=keeps)
    answer = ask(where, command)
    if arguments.no_wait:
        terminal().print(f"{answer.text}.", markup=False)
        return
    started = time.monotonic()
    ended = _wait(where, command, answer.text)
    terminal().print(f"{ended} ({time.monotonic() - started:.1f} s)", markup=False)


def _wait(where: Place, command: Command, begun: str) -> str:
    """Wait until the cluster has done it; a sentence about how it ended."""
    with terminal().status(begun) as progress:
        while True:
            status = _look(where)
            if ended := _ended(command, status):
                return ended
            progress.update(f"{begun}: {_phases(command, status)}")
            time.sleep(POLL_S)


def _ended(command: Command, status: Status) -> str:
    """A sentence if what the command began has ended, else ""."""
    if isinstance(command, Drain):
        there = any(replica.name == command.replica for replica in status.replicas)
        return "" if there else f"{command.replica} has answered its requests and stopped."
    deployment = _deployment(command, status)
    if deployment.gave_up:
        raise Failure(f"{deployment.name}: {deployment.gave_up}")
    living = [each for each in status.replicas if each.deployment == deployment.name and not each.role]
    if isinstance(command, Update):
        if deployment.updating:
            return ""
        if any(replica.phase in LEAVING for replica in living):  # an old one answers its last requests
            return ""
        if not deployment.update.startswith("done"):
            raise Failure(f"{deployment.name}: the update {deployment.update}")
        return f"{deployment.name}: update {deployment.update}."
    if deployment.ready == deployment.desired == len(living):
        return f"{deployment.name} has {deployment.ready} replicas{'' if deployment.ready else f'; {NOBODY}'}."
    return ""


def _phases(command: Command, status: Status) -> str:
    """The replicas that the command is about, and their phases."""
    if isinstance(command, Drain):
        left = [replica.in_flight for replica in status.replicas if replica.name == command.replica]
        return ", ".join(f"{requests} requests left" for requests in left)
    name = _deployment(command, status).name
    return ", ".join(f"{replica.name} {replica.phase}" for replica in status.replicas if replica.deployment == name)


def _deployment(command: Command, status: Status) -> DeploymentStatus:
    assert isinstance(command, Scale | Update)
    return next(
        deployment for deployment in status.deployments if command.deployment in (deployment.name, *deployment.models)
    )
