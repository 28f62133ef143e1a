"""The loop of a cluster with an engine and a door that do what the test says."""

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import pytest
from cluster_bench import ENTRY, Replicas, silence
from processes import wait_until

from serve.cluster import autoscaler, controller, pace, plan_check
from serve.cluster.control import Call, Command, Down, Look, Update
from serve.cluster.controller import Controller, Setup
from serve.cluster.engine import Phase
from serve.cluster.events import Events
from serve.cluster.plan import Deployment, Plan, ScalingTable
from serve.cluster.state import start_of
from serve.cluster.status import Status
from serve.front.door import Endpoint, Traffic
from serve.front.envoy import Envoy
from triton_batching.terminal import Failure

SECONDS = 20.0


class Door(Envoy):
    """A door before one replica, a-1. is_full: its disk has no room. in_flight: requests at the replica."""

    restarts = 0

    def __init__(self) -> None:
        self.is_full, self.in_flight = False, 0
        self.routed: list[Endpoint] = []

    def route(self, endpoints: Mapping[str, Sequence[Endpoint]]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.routed = [endpoint for replicas in endpoints.values() for endpoint in replicas]

    def traffic(self) -> Mapping[str, Traffic]:
        return {"a-1": Traffic(in_flight=self.in_flight, requests=0, failures=0)}

    def metrics(self) -> str:
        return ""


class Running:
    """A controller that runs; its first replica is a-1."""

    def __init__(self, entry: Deployment, port: int) -> None:
        self.door, self.engine, self.lines = Door(), Replicas(port), list[str]()
        plan = Plan(deployment=(entry,), http_port=0, grpc_port=0, metrics_port=-1)
        door, _ = plan_check.check(plan, "plan")
        starts = {"a": start_of(entry, None)}
        setup = Setup(plan=plan, name="plan", engine="local", door=door, metrics_port=None, starts=starts)
        events = Events(self.lines.append)
        self.controller = Controller(
            setup, self.engine, self.door, events, remember=lambda _: None, publish=len, ready=lambda: None
        )
        self.failure = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end_starts(self, why: str) -> None:
        """End each replica that starts."""
        for name in [name for name, state in self.engine.found.items() if state.phase is Phase.STARTING]:
            self.engine.end(name, why)

    def _run(self) -> None:
        try:
            self.controller.run()
        except Failure as failure:
            self.failure = str(failure)

    def do(self, command: Command) -> Status:
        call = Call(command)
        self.controller.calls.put(call)
        answer = call.wait()
        assert answer.status is not None, answer.mistake
        return answer.status

    def wait_for(self, condition: Callable[[], bool]) -> None:
        assert wait_until(condition, seconds=SECONDS), self.lines

    def end(self) -> None:
        if not self.failure:
            self.do(Down())
        self._thread.join()
        self.controller.close()
        for group in self.controller.groups.values():
            for occupant in group.occupants.values():
                occupant.end()


@contextlib.contextmanager
def running(entry: Deployment, *, is_ready: bool = True) -> Iterator[Running]:
    """A cluster whose first replica is ready, or just starts."""
    with silence() as port:
        cluster = Running(entry, port)
        try:
            cluster.wait_for(lambda: "a-1" in cluster.engine.found)
            if is_ready:
                cluster.engine.ready("a-1")
            yield cluster
        finally:
            cluster.end()


def test_full_disk_of_the_door_does_not_end_the_cluster() -> None:
    with running(msgspec.structs.replace(ENTRY, replicas=1)) as cluster:
        cluster.wait_for(lambda: [endpoint.replica for endpoint in cluster.door.routed] == ["a-1"])
        cluster.door.is_full = True
        cluster.engine.end("a-1", "it ended")
        cluster.wait_for(lambda: any("No space left on device" in line for line in cluster.lines))
        cluster.door.is_full = False
        cluster.wait_for(lambda: cluster.door.routed == [])
        cluster.door.is_full = True  # and at the end


def test_a_plan_whose_replicas_do_not_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST_WAIT_S", 0.0)
    with running(msgspec.structs.replace(ENTRY, replicas=1), is_ready=False) as cluster:

        def is_over() -> bool:
            cluster.end_starts("this variant is broken")
            return bool(cluster.failure)

        cluster.wait_for(is_over)
    assert cluster.failure.startswith("deployment a: 3 starts failed in a row; the last: ")
    assert "this variant is broken" in cluster.failure


def test_the_autoscaler_does_not_try_again_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "DECIDE_S", 0.05)
    monkeypatch.setattr(controller, "TRAFFIC_S", 0.0)
    monkeypatch.setattr(pace, "FIRST_WAIT_S", 0.0)
    scaling = ScalingTable(max=3, target_pending=1, down_after_s=0.0)
    with running(msgspec.structs.replace(ENTRY, replicas=1, scaling=scaling)) as cluster:

        def gave_up() -> str:
            cluster.end_starts("no GPU")
            return cluster.do(Look()).deployments[0].gave_up

        cluster.wait_for(lambda: cluster.do(Look()).is_ready)
        cluster.door.in_flight = 10
        cluster.wait_for(lambda: bool(gave_up()))
        cluster.door.in_flight = 0
        cluster.wait_for(lambda: cluster.do(Look()).deployments[0].desired == 1)
        assert "starts failed in a row" in gave_up()
        assert cluster.do(Update(deployment="a", keeps_config=True)).deployments[0].gave_up == ""
