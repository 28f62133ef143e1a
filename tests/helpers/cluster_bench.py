"""A group of replicas whose cluster ticks when told; the engine's states are set by the test."""

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from export.repository import REPOSITORY
from serve.cluster import plan_check
from serve.cluster.commands import Commands
from serve.cluster.control import Command
from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.events import Events
from serve.cluster.group import Group
from serve.cluster.occupant import Occupant
from serve.cluster.plan import Deployment, Limits, Plan
from serve.cluster.state import Remembered, start_of
from triton_batching.terminal import Mistake

ENTRY = Deployment(name="a", models=("simulated_accelerator",), replicas=2, config_name="dynamic")
NEW = "dynamic_2_instances"


class Replicas:
    """An `Engine` of replicas that get ready and end when the test says so; their port never answers.

    room: for so many replicas. kept: those whose logs are kept although they were stopped.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.found: dict[str, ReplicaState] = {}
        self.room, self.kept = 100, list[str]()

    def check(self, replicas: Sequence[Replica]) -> None:
        if len(self.found) + len(replicas) > self.room:
            raise Mistake("there is no room.")

    def start(self, replica: Replica) -> None:
        self.found[replica.name] = ReplicaState(phase=Phase.STARTING)

    def states(self) -> Mapping[str, ReplicaState]:
        return self.found

    def stop(self, name: str) -> None:
        self.end(name, "")

    def forget(self, name: str, *, keeps_log: bool = False) -> None:
        del self.found[name]
        if keeps_log:
            self.kept.append(name)

    def close(self) -> None:
        self.found.clear()

    def ready(self, name: str, problem: str = "") -> None:
        self.found[name] = ReplicaState(
            phase=Phase.READY,
            host="127.0.0.1",
            http_port=self._port,
            grpc_port=self._port,
            metrics_port=self._port,
            problem=problem,
        )

    def end(self, name: str, problem: str) -> None:
        self.found[name] = ReplicaState(phase=Phase.ENDED, problem=problem)


class Bench:
    """A group of ready replicas whose cluster ticks when told."""

    def __init__(
        self, port: int, entry: Deployment, remembered: Remembered | None, repository: Path, limits: Limits
    ) -> None:
        self.engine, self.lines = Replicas(port), list[str]()
        self.events = Events(self.lines.append)
        start = start_of(entry, remembered)
        self.group = Group(entry, start, self.engine, self.events, limits=limits, repository=repository)
        self.settle()

    def tick(self) -> None:
        self.group.tick(self.engine.states(), {})

    def settle(self) -> None:
        """Let everything that starts get ready, and everything that leaves end, until nothing does."""
        self.tick()
        while unsettled := [each for each in self.group.occupants.values() if each.leaving or not each.ready_at]:
            for each in unsettled:
                if each.leaving:
                    self.engine.end(each.name, "")
                else:
                    self.engine.ready(each.name)
            self.tick()

    def begin(self) -> None:
        self.group.begin_canary(NEW, 0.1)
        self.tick()

    def of(self, role: str) -> Occupant:
        [found] = [each for each in self.group.occupants.values() if each.role == role and not each.leaving]
        return found

    def weights(self) -> dict[str, int]:
        return {each.replica: each.weight for each in self.group.endpoints() if not each.is_draining}

    def configurations(self) -> dict[str, str | None]:
        """The configuration of each replica that stays, with its role behind the name."""
        occupants = [each for each in self.group.occupants.values() if not each.leaving]
        return {f"{each.name} {each.role}".strip(): each.replica.settings.config_name for each in occupants}


@contextlib.contextmanager
def silence() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        yield silent.getsockname()[1]


@contextlib.contextmanager
def benched(
    entry: Deployment = ENTRY,
    remembered: Remembered | None = None,
    repository: Path = REPOSITORY,
    limits: Limits | None = None,
) -> Iterator[Bench]:
    """A bench of this deployment, with two replicas if none is given."""
    with silence() as port:
        bench = Bench(port, entry, remembered, repository, limits or Limits())
        yield bench
        for occupant in bench.group.occupants.values():
            occupant.end()


class Told:
    """A bench, the commands to its group, and what was said to each."""

    def __init__(self, bench: Bench, repository: Path) -> None:
        self.bench, self.said, entry = bench, list[str](), bench.group.entry
        started = msgspec.structs.replace(entry, replicas=bench.group.desired, config_name=bench.group.config_name)
        pools = (plan_check.pool(started, repository, "a"),)
        plan = Plan(deployment=(entry,), repository=repository)
        self._commands = Commands(plan, pools, {"a": bench.group}, bench.engine, bench.events)

    def does(self, command: Command) -> None:
        self.said.append(f"{command}\n    {self._commands.do(command)}")

    def refuses(self, command: Command) -> None:
        with pytest.raises(Mistake) as raised:
            self._commands.do(command)
        self.said.append(f"{command}\n    refused: {raised.value}")


@contextlib.contextmanager
def told(
    entry: Deployment = ENTRY, remembered: Remembered | None = None, repository: Path = REPOSITORY
) -> Iterator[Told]:
    """A bench to which commands are told."""
    with benched(entry, remembered, repository) as bench:
        yield Told(bench, repository)
