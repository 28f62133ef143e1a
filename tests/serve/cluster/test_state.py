"""What a cluster remembers, where it keeps it, and who may talk to it."""

import json
import queue
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from serve.cluster import place, state, targets
from serve.cluster.control import Answer, Call, Drain, Look, Scale, ask, listening
from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.occupant import Occupant
from serve.cluster.place import Place, RunningError
from serve.cluster.plan import Deployment, Plan, ScalingTable
from serve.cluster.state import Remembered
from serve.launcher import Settings
from triton_batching.terminal import Mistake


def entry(replicas: int, config_name: str | None = "dynamic", scaling: ScalingTable | None = None) -> Deployment:
    return Deployment(name="a", models=("m",), replicas=replicas, config_name=config_name, scaling=scaling)


FOUND = Remembered(replicas=5, config_name="tuned", planned_replicas=2, planned_config_name="dynamic", number=17)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    found = place.of_plan(tmp_path / "plan.toml")
    yield found
    place.forget(found)
    assert not found.folder.exists()


def test_up_continues_except_where_the_plan_has_changed() -> None:
    limits = ScalingTable(min=2, max=4, target_pending=8)
    expected: list[tuple[Deployment, tuple[int, str | None, int]]] = [
        (entry(2), (5, "tuned", 17)),
        (entry(3), (3, "tuned", 17)),
        (entry(2, None), (5, None, 17)),
        (entry(2, scaling=limits), (4, "tuned", 17)),
    ]
    for plan, (replicas, config_name, number) in expected:
        start = state.start_of(plan, FOUND)
        assert (start.replicas, start.config_name, start.number) == (replicas, config_name, number)
    fewest = entry(1, scaling=limits)
    starts = {"a": state.start_of(fewest, None)}
    assert (starts["a"].replicas, state.differences(Plan(deployment=(fewest,)), starts)) == (2, [])
    new = state.start_of(entry(2), None)
    assert (new.replicas, new.config_name, new.number) == (2, "dynamic", 0)


def test_state_is_read_as_it_was_written(here: Place) -> None:
    assert state.read(here.state) == {}
    here.folder.mkdir(mode=0o700)
    state.write(here.state, {"a": FOUND})
    assert state.read(here.state) == {"a": FOUND}
    here.state.write_text('{"version": 99, "deployments": {}}')
    assert state.read(here.state) == {}
    negative = msgspec.json.encode(msgspec.structs.replace(FOUND, number=-7)).decode()
    for damaged in ("{", "[" * 100_000, f'{{"version": 1, "deployments": {{"a": {negative}}}}}'):
        here.state.write_text(damaged)
        assert state.read(here.state) == {}


def test_place_is_private_and_taken_by_one(here: Place) -> None:
    assert not place.is_taken(here)
    with place.taken(here):
        assert stat.S_IMODE(here.folder.stat().st_mode) == 0o700
        assert place.is_taken(here)
        assert here.name in [each.name for each in place.running()]
        with pytest.raises(RunningError, match="its cluster runs already"), place.taken(here):
            pass
        assert place.is_taken(here)
        here.targets.write_text("[]")
        (here.folder / ".state.json.draft").write_text("half")
    assert not place.is_taken(here)
    assert not here.folder.exists()


def test_targets_are_the_replicas_that_serve() -> None:
    def occupant(name: str, phase: Phase, *, stopping: bool = False) -> Occupant:
        replica = Replica(name=name, deployment="a", settings=Settings(models=("m",)))
        state = ReplicaState(phase=phase, host="::1", metrics_port=8002)
        return Occupant(replica=replica, number=1, generation=0, state=state, stopping=stopping)

    there = [occupant("a-1", Phase.STARTING), occupant("a-2", Phase.READY), occupant("a-3", Phase.READY, stopping=True)]
    replica = {"targets": ["[::1]:8002"], "labels": {"deployment": "a", "replica": "a-2"}}
    assert json.loads(targets.text(there, "127.0.0.1", None)) == [replica]
    assert json.loads(targets.text(there, "127.0.0.2", 9002)) == [{"targets": ["127.0.0.2:9002"]}, replica]
    assert json.loads(targets.text([], "0.0.0.0", 9002)) == [{"targets": ["127.0.0.1:9002"]}]


def test_place_of_a_plan_that_is_gone_is_forgotten(here: Place, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    lost, kept = place.of_plan(gone / "plan.toml"), place.of_plan(tmp_path / "kept.toml")
    for each in (lost, kept):
        with place.taken(each):
            each.state.write_text("{}")
    gone.rmdir()
    with place.taken(here):
        assert not lost.folder.exists()
        assert kept.state.exists()
    place.forget(kept)


def test_requests_are_answered_over_a_socket_of_the_user_alone(here: Place) -> None:
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    commands = []

    def cluster() -> None:
        for answer in (Answer(text="begun"), Answer(mistake="no such replica")):
            call = calls.get(timeout=10)
            commands.append(call.command)
            call.answer(answer)

    thread = threading.Thread(target=cluster)
    with place.taken(here), listening(here.socket, calls):
        assert stat.S_IMODE(here.socket.stat().st_mode) == 0o600
        thread.start()
        assert ask(here, Scale(deployment="a", replicas=3)).text == "begun"
        with pytest.raises(Mistake, match=r"^no such replica$"):
            ask(here, Drain(replica="a-9"))
        thread.join()
        with pytest.raises(Mistake, match=r"speaks version 1, this request is of version 2"):
            ask(here, Look(version=2))
    assert commands == [Scale(deployment="a", replicas=3), Drain(replica="a-9")]
    with pytest.raises(Mistake, match="its cluster does not run"):
        ask(here, Look())
