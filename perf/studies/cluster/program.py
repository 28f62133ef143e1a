"""A cluster that runs as a program of its own, as a user starts it, and what is done to it."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from export.repository import REPOSITORY
from perf.studies.archive import ROOT
from perf.studies.cluster import ray_nodes
from perf.studies.cluster.clients import Door
from perf.studies.cluster.ray_nodes import Nodes
from serve.cluster import control, place
from serve.cluster.control import Command
from serve.cluster.status import ReplicaStatus, Status
from triton_batching import processes
from triton_batching.terminal import Failure

READY_S, POLL_S, END_S = 180.0, 0.1, 60.0


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Replicas of one model behind a front door on free ports."""

    model: str
    config_name: str | None
    repository: Path = REPOSITORY
    replicas: int = 3

    def write(self, folder: Path) -> Path:
        """Write it into `folder`; the path of the plan."""
        lines = [
            "http_port = 0",
            "grpc_port = 0",
            "metrics_port = 0",
            f'repository = "{self.repository}"',
            "[[deployment]]",
            'name = "replicas"',
            f'models = ["{self.model}"]',
            *([f'config_name = "{self.config_name}"'] if self.config_name else []),
            f"replicas = {self.replicas}",
            "p99_ms = 200",
            "most_in_flight = 1024",
        ]
        plan = folder / "plan.toml"
        plan.write_text("\n".join(lines) + "\n")
        return plan


@dataclass(frozen=True, kw_only=True)
class RunningCluster:
    """A running `python -m serve.cluster up`; `log` has what it prints. nodes: those of Ray, with that engine."""

    process: "subprocess.Popen[bytes]"
    place: place.Place
    log: Path
    nodes: Nodes | None = None

    def ask(self, command: Command) -> Status:
        """Send a command; the status after it. Raises `Mistake` and `Failure`."""
        status = control.ask(self.place, command).status
        return self.status() if status is None else status

    def status(self) -> Status:
        """How the cluster is."""
        status = control.ask(self.place, control.Look()).status
        if status is None:
            raise Failure(f"{self.place.name}: the cluster says nothing of itself.")
        return status

    def ready(self) -> list[ReplicaStatus]:
        """The replicas that take requests."""
        return [replica for replica in self.status().replicas if replica.phase == "ready"]

    def door(self, model: str) -> Door:
        """The addresses of its front door."""
        status = self.status()
        return Door(
            model=model,
            http_url=f"{status.host}:{status.http_port}",
            grpc_url=f"{status.host}:{status.grpc_port}",
        )

    def wait(self, what: str, holds: Callable[[Status], bool], *, most_s: float = READY_S) -> Status:
        """Wait until `holds`; raises `Failure` after `most_s`, or when the program ends."""
        end = time.monotonic() + most_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failure(f"the cluster ended with code {self.process.returncode}.\n{self.log.read_text()[-2000:]}")
            with contextlib.suppress(Exception):
                if holds(status := self.status()):
                    return status
            time.sleep(POLL_S)
        raise Failure(f"{what}: not so after {most_s:g} s.\n{self.log.read_text()[-2000:]}")

    def scale(self, deployment: str, replicas: int) -> None:
        """Have so many replicas, and wait until they are there and no other."""
        self.ask(control.Scale(deployment=deployment, replicas=replicas))
        self.wait(
            f"{replicas} replicas",
            lambda status: [replica.phase for replica in status.replicas] == ["ready"] * replicas,
        )


def server_of(replica: ReplicaStatus) -> int:
    """The process of the replica's tritonserver, a child of its guard; raises `Failure` if it is gone."""
    for pid in processes.tree(replica.pid):
        if processes.name(pid) == "tritonserver":
            return pid
    raise Failure(f"{replica.name} has no tritonserver (any more).")


def proxies(cluster: RunningCluster) -> list[int]:
    """The processes of the proxy, its parent first."""
    tree = processes.tree(cluster.process.pid)
    found = [pid for pid in tree if processes.name(pid) == "envoy"]
    parents = [pid for pid in tree if set(processes.children(pid)) & set(found) and pid != cluster.process.pid]
    return [*parents, *found]


@contextlib.contextmanager
def running(plan: Path, *, engine: str, log: Path) -> Iterator[RunningCluster]:
    """Start the cluster, yield it when all replicas are ready, and end it; Ray gets three nodes."""
    with ray_nodes.running() if engine == "ray" else contextlib.nullcontext() as nodes:
        yield from _running(plan, engine, log, nodes)


def _running(plan: Path, engine: str, log: Path, nodes: Nodes | None) -> Iterator[RunningCluster]:
    command = [sys.executable, "-m", "serve.cluster", "up", str(plan), "--engine", engine, "--fresh"]
    with log.open("wb") as output:
        # In a session of its own, so that Ctrl-C reaches this program alone.
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
    try:
        cluster = RunningCluster(process=process, place=place.of_plan(plan), log=log, nodes=nodes)
        cluster.wait("every replica ready", lambda status: status.is_ready)
        yield cluster
    finally:
        # A shell starts programs in the background with SIGINT ignored.
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
