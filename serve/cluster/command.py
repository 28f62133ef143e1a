"""What `python -m serve.cluster` does: runs a cluster, or tells a running one what to do and waits until it is done."""

import argparse
import time

import msgspec

from serve.cluster import place, plan_file
from serve.cluster.canary import CANARY, CONTROL, ROLES
from serve.cluster.control import Abandon, Canary, Command, Down, Drain, Look, Promote, Scale, Update, ask
from serve.cluster.place import Place
from serve.cluster.status import NOBODY, DeploymentStatus, Status
from serve.cluster.status_table import print_status, with_served
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
    status = with_served(_look(where))
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
    """Scale, drain, update, or begin or end a canary, and wait until it is done."""
    command = _command(arguments)
    answer = ask(where, command)
    if arguments.no_wait:
        terminal().print(f"{answer.text}.", markup=False)
        return
    started = time.monotonic()
    ended = _wait(where, command, answer.text)
    terminal().print(f"{ended} ({time.monotonic() - started:.1f} s)", markup=False)
    if isinstance(command, Canary):
        terminal().print("Compare both with `status`, and then `promote` or `abandon` the canary.")


def _command(arguments: argparse.Namespace) -> Command:
    match arguments.verb:
        case "scale":
            return Scale(deployment=arguments.deployment, replicas=arguments.replicas)
        case "drain":
            return Drain(replica=arguments.replica)
        case "update":
            keeps = arguments.config_name is None
            return Update(deployment=arguments.deployment, config_name=arguments.config_name, keeps_config=keeps)
        case "canary":
            share = arguments.percent / 100
            return Canary(deployment=arguments.deployment, config_name=arguments.config_name, share=share)
        case "promote":
            return Promote(deployment=arguments.deployment)
        case _:
            return Abandon(deployment=arguments.deployment)


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
    if isinstance(command, Canary | Abandon):
        return _canary_ended(command, deployment, status)
    if deployment.gave_up:
        raise Failure(f"{deployment.name}: {deployment.gave_up}")
    living = [each for each in status.replicas if each.deployment == deployment.name and not each.role]
    if isinstance(command, Update | Promote):
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


def _canary_ended(command: Canary | Abandon, deployment: DeploymentStatus, status: Status) -> str:
    name = deployment.name
    pair = {each.role: each for each in status.replicas if each.deployment == name and each.role}
    if isinstance(command, Abandon):
        return "" if pair else f"{name}: the canary and its control have stopped."
    if deployment.canary is None:
        raise Failure(f"{name}: {deployment.canary_failed or 'the canary was abandoned'}")
    if [each.phase for each in pair.values()] != ["ready"] * len(ROLES):
        return ""
    return (
        f"{name}: the canary {pair[CANARY].name} and its control {pair[CONTROL].name} get "
        f"{deployment.canary_share:.1%} of the requests each."
    )


def _phases(command: Command, status: Status) -> str:
    """The replicas that the command is about, and their phases."""
    if isinstance(command, Drain):
        left = [replica.in_flight for replica in status.replicas if replica.name == command.replica]
        return ", ".join(f"{requests} requests left" for requests in left)
    name = _deployment(command, status).name
    return ", ".join(f"{replica.name} {replica.phase}" for replica in status.replicas if replica.deployment == name)


def _deployment(command: Command, status: Status) -> DeploymentStatus:
    assert isinstance(command, Scale | Update | Canary | Promote | Abandon)
    return next(
        deployment for deployment in status.deployments if command.deployment in (deployment.name, *deployment.models)
    )
