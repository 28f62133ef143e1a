"""A canary and its control beside the replicas of a deployment; the engine's states are set by the test."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from export.repository import REPOSITORY
from serve.cluster.canary import CANARY, CONTROL, Canary
from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.events import Events
from serve.cluster.group import Group
from serve.cluster.occupant import Occupant
from serve.cluster.plan import Deployment, Limits
from serve.cluster.state import start_of

ENTRY = Deployment(name="a", models=("simulated_accelerator",), replicas=2, config_name="dynamic")
NEW = "dynamic_2_instances"


class Replicas:
    """An `Engine` of replicas that get ready and end when the test says so; their port never answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.found: dict[str, ReplicaState] = {}

    def check(self, replicas: Sequence[Replica]) -> None:
        """There is always room."""

    def start(self, replica: Replica) -> None:
        self.found[replica.name] = ReplicaState(phase=Phase.STARTING)

    def states(self) -> Mapping[str, ReplicaState]:
        return self.found

    def stop(self, name: str) -> None:
        self.end(name, "")

    def forget(self, name: str) -> None:
        del self.found[name]

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
    """A group of two ready replicas whose cluster ticks when told."""

    def __init__(self, port: int) -> None:
        self.engine, self.lines = Replicas(port), list[str]()
        self.group = Group(
            ENTRY, start_of(ENTRY, None), self.engine, Events(self.lines.append), limits=Limits(), repository=REPOSITORY
        )
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

    def begin(self, share: float = 0.1, most_s: float = 60.0) -> None:
        self.group.begin_canary(NEW, share, most_s)
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


@pytest.fixture
def bench() -> Iterator[Bench]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        running = Bench(silent.getsockname()[1])
        yield running
        for occupant in running.group.occupants.values():
            occupant.end()


@pytest.mark.parametrize(
    ("share", "ordinary", "weight"), [(0.1, 2, 25), (0.1, 8, 100), (0.45, 2, 100), (0.001, 1, 1), (0.2, 0, 1)]
)
def test_weight_gives_the_share_and_at_most_that_of_an_ordinary_replica(
    share: float, ordinary: int, weight: int
) -> None:
    canary = Canary(config_name=None, share=share, generation=1, ends_at=0.0)
    assert canary.weight(ordinary) == weight
    if 1 < weight < 100:
        assert weight / (2 * weight + 100 * ordinary) == pytest.approx(share)


def test_canary_and_control_get_their_share_when_both_are_ready(bench: Bench) -> None:
    before = bench.group.remembered()
    bench.begin()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic", "a-3 canary": NEW, "a-4 control": "dynamic"}
    bench.engine.ready("a-3")
    bench.tick()
    assert bench.weights() == {"a-1": 100, "a-2": 100}
    bench.engine.ready("a-4")
    bench.tick()
    assert bench.weights() == {"a-1": 100, "a-2": 100, "a-3": 25, "a-4": 25}
    status = bench.group.status()
    assert (status.desired, status.ready, status.canary, status.canary_failed) == (2, 2, NEW, "")
    bench.group.scale(4)
    bench.settle()
    assert bench.weights() == {**dict.fromkeys(("a-1", "a-2", "a-5", "a-6"), 100), "a-3": 50, "a-4": 50}
    after = bench.group.remembered()
    assert (after.replicas, after.config_name, before.config_name) == (4, "dynamic", "dynamic")


def test_promoted_canary_is_one_of_the_updated_replicas(bench: Bench) -> None:
    bench.begin()
    bench.settle()
    bench.group.promote()
    assert bench.weights() == {"a-1": 100, "a-2": 100, "a-3": 100}
    assert bench.group.remembered().config_name == "dynamic"
    least = 2
    while bench.group.is_updating:
        bench.tick()
        least = min(least, len(bench.group.ready()))
        bench.settle()
    assert least == 2
    assert bench.configurations() == {"a-3": NEW, "a-5": NEW}
    assert bench.group.status().update == f"done: 2 replicas with {NEW}"
    assert bench.group.remembered().config_name == NEW


def test_abandoned_canary_leaves_the_others_as_they_are(bench: Bench) -> None:
    bench.begin()
    bench.settle()
    bench.group.abandon()
    assert bench.weights() == {"a-1": 100, "a-2": 100}
    bench.settle()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic"}
    status = bench.group.status()
    assert (status.canary, status.canary_failed, status.deaths, status.drained) == (None, "", 0, 2)


def died(role: str) -> Callable[[Bench], None]:
    return lambda bench: bench.engine.end(bench.of(role).name, "tritonserver was killed by SIGKILL")


def problem(bench: Bench) -> None:
    bench.engine.ready(bench.of(CANARY).name, "a process of 'm' died")


def too_late(bench: Bench) -> None:
    assert bench.group.canary is not None
    bench.group.canary.ends_at = 0.0


@pytest.mark.parametrize(
    ("happens", "why", "deaths"),
    [
        (died(CANARY), "a-3 (the canary) died: tritonserver was killed by SIGKILL", 1),
        (died(CONTROL), "a-4 (the control) died: tritonserver was killed by SIGKILL", 1),
        (problem, "a-3 (the canary): a process of 'm' died", 1),
        (too_late, "nobody promoted or abandoned it in time", 0),
    ],
    ids=["canary", "control", "problem", "time"],
)
def test_cluster_abandons_a_canary(bench: Bench, happens: Callable[[Bench], None], why: str, deaths: int) -> None:
    bench.begin()
    bench.settle()
    happens(bench)
    bench.tick()
    assert bench.weights() == {"a-1": 100, "a-2": 100}
    bench.settle()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic"}
    status = bench.group.status()
    assert (status.canary, status.canary_failed) == (None, f"the canary with {NEW} is abandoned: {why}")
    assert (status.deaths, status.gave_up) == (deaths, "")
    assert any(status.canary_failed in line for line in bench.lines)
    bench.begin()
    assert bench.group.status().canary_failed == ""


def test_canary_that_does_not_start_is_tried_twice(bench: Bench) -> None:
    bench.begin()
    bench.engine.ready("a-4")
    bench.engine.end("a-3", "it does not start")
    bench.tick()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic", "a-4 control": "dynamic", "a-5 canary": NEW}
    bench.engine.end("a-5", "it does not start")
    bench.settle()
    assert bench.configurations() == {"a-1": "dynamic", "a-2": "dynamic"}
    assert bench.group.status().canary_failed.endswith("a-5 (the canary) did not start: it does not start")
    # Its deaths do not delay the others.
    bench.engine.end("a-1", "it ended")
    bench.tick()
    assert "a-6" in bench.configurations()
