"""What commands begin and refuse, and what a group counts; the engine's states are set by the test."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cluster_bench import ENTRY, NEW, Bench, benched

from export.repository import REPOSITORY
from serve.cluster import occupant, pace, place, plan_check, state
from serve.cluster.__main__ import main
from serve.cluster.commands import Commands
from serve.cluster.control import Abandon, Canary, Command, Drain, Promote, Scale, Update
from serve.cluster.plan import Deployment, Limits, Plan, ScalingTable
from serve.cluster.state import Remembered
from serve.cluster.up import up
from triton_batching.terminal import Mistake

STATELESS = """
name: "counter" backend: "python" max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
COUNTER = Deployment(name="a", models=("counter",))
# The cluster was told `update sequences` before it ended.
UPDATED = Remembered(replicas=1, config_name="sequences", planned_replicas=1, planned_config_name=None, number=1)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model that keeps state between the requests of a sequence with the variant `sequences`."""
    model = tmp_path / "models" / "counter"
    for name, text in {
        "1/model.py": "",
        "config.pbtxt": STATELESS,
        "configs/other.pbtxt": STATELESS,
        "configs/sequences.pbtxt": f"{STATELESS} sequence_batching {{ }}",
    }.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(text)
    return model.parent


class Told:
    """A bench and the commands to its group."""

    def __init__(self, bench: Bench, repository: Path) -> None:
        self.bench, entry = bench, bench.group.entry
        started = msgspec.structs.replace(entry, replicas=bench.group.desired, config_name=bench.group.config_name)
        pools = (plan_check.pool(started, repository, "a"),)
        plan = Plan(deployment=(entry,), repository=repository)
        self._commands = Commands(plan, pools, {"a": bench.group}, bench.engine, bench.events)

    def do(self, command: Command) -> str:
        return self._commands.do(command)


@contextlib.contextmanager
def told(
    entry: Deployment = ENTRY, remembered: Remembered | None = None, repository: Path = REPOSITORY
) -> Iterator[Told]:
    with benched(entry, remembered, repository) as bench:
        yield Told(bench, repository)


def test_update_to_sequences_needs_one_replica_and_a_door_that_sends_nothing_twice(models: Path) -> None:
    with told(msgspec.structs.replace(COUNTER, replicas=3), repository=models) as three:
        with pytest.raises(Mistake, match="a: counter keeps state between the requests of a sequence"):
            three.do(Update(deployment="a", config_name="sequences"))
        with pytest.raises(Mistake, match="no such file"):
            three.do(Update(deployment="a", config_name="x" * 5000))
        assert three.do(Update(deployment="a", config_name="other")) == "a: the update to other begins"
    with told(COUNTER, repository=models) as one:
        with pytest.raises(Mistake, match="and sequences, one has sequence_batching and one has not"):
            one.do(Update(deployment="a", config_name="sequences"))
        # New files with the same name.
        (models / "counter" / "config.pbtxt").write_text(f"{STATELESS} sequence_batching {{ }}")
        with pytest.raises(Mistake, match=r"and config\.pbtxt, one has sequence_batching and one has not"):
            one.do(Update(deployment="a", keeps_config=True))
        assert not one.bench.group.is_updating


def test_scale_looks_at_the_configuration_that_runs(models: Path) -> None:
    with told(COUNTER, UPDATED, models) as running:
        with pytest.raises(Mistake, match="a: counter keeps state between the requests of a sequence"):
            running.do(Scale(deployment="a", replicas=3))
        assert running.do(Scale(deployment="a", replicas=0)) == (
            "a: 1 -> 0 replicas; its requests fail (503, UNAVAILABLE) until `scale` gives it one"
        )


def test_up_looks_at_the_configuration_that_it_continues_with(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(deployment=(COUNTER,), repository=models, http_port=0, grpc_port=0, metrics_port=-1)
    door, _ = plan_check.check(state.continued(plan, {"a": UPDATED}), "plan")
    assert [pool.is_retried for pool in door.pools] == [False]
    here = place.of_plan(tmp_path / "plan.toml")
    here.folder.mkdir(mode=0o700)
    try:
        state.write(here.state, {"a": msgspec.structs.replace(UPDATED, replicas=2)})
        with pytest.raises(Mistake, match="counter keeps state between the requests of a sequence"):
            up(plan, here)
    finally:
        place.forget(here)
    assert "continues with 2 replicas of a (the plan says 1); a with sequences. --fresh" in capsys.readouterr().out


def test_update_needs_room_for_one_replica_more() -> None:
    with told() as running:
        running.bench.engine.room = 2
        with pytest.raises(Mistake, match=r"^a: an update starts one replica before another leaves\. there is no room"):
            running.do(Update(deployment="a", config_name=NEW))
        running.bench.engine.room = 3
        assert running.do(Update(deployment="a", config_name=NEW)) == f"a: the update to {NEW} begins"


def test_drain_of_the_only_ready_replica_is_refused() -> None:
    with told() as running:
        assert running.do(Drain(replica="a-1")) == "a-1 drains"
        running.bench.tick()
        with pytest.raises(Mistake, match=r"a-2: no other replica of a is ready.* python -m serve.cluster update a"):
            running.do(Drain(replica="a-2"))
        running.bench.settle()
        assert running.do(Drain(replica="a-2")) == "a-2 drains"


@pytest.mark.parametrize(
    ("deployment", "config_name", "words"),
    [
        ("b", NEW, r"^b: no such deployment or model\. There are: a\.$"),
        ("a", "dynamic", r"^a: has dynamic already\. For new files of its models: `update a`\.$"),
        ("a", "fast", r"^a: .*/configs/fast\.pbtxt: no such file.* has: baseline, dynamic, dynamic_2_instances\.$"),
    ],
)
def test_canary_that_cannot_begin(deployment: str, config_name: str, words: str) -> None:
    with told() as running:
        with pytest.raises(Mistake, match=words):
            running.do(Canary(deployment=deployment, config_name=config_name, share=0.1))
        assert running.bench.group.canary is None


def test_canary_needs_room_for_two_replicas_and_one_that_is_ready() -> None:
    begin = Canary(deployment="a", config_name=NEW, share=0.1)
    with told() as running:
        running.bench.engine.room = 3
        with pytest.raises(Mistake, match="there is no room"):
            running.do(begin)
        running.do(Scale(deployment="a", replicas=0))
        running.bench.tick()
        with pytest.raises(Mistake, match="a: no replica is ready, so a canary would get all requests"):
            running.do(begin)


def test_commands_to_a_canary_and_beside_one() -> None:
    begin = Canary(deployment="a", config_name=NEW, share=0.1)
    with told() as running:
        for command in (Promote(deployment="a"), Abandon(deployment="a")):
            with pytest.raises(Mistake, match=r"^a: no canary runs\.$"):
                running.do(command)
        assert running.do(begin) == f"a: the canary with {NEW} and its control start"
        running.bench.tick()
        with pytest.raises(Mistake, match="a: the canary and its control are not both ready yet"):
            running.do(Promote(deployment="a"))
        running.bench.settle()
        for other in (begin, Update(deployment="a", config_name="baseline")):
            with pytest.raises(Mistake, match=f"a: a canary with {NEW} runs. `promote` or `abandon` it first"):
                running.do(other)
        with pytest.raises(Mistake, match=r"a-4: is the control of a\. It leaves when the canary ends"):
            running.do(Drain(replica="a-4"))
        running.bench.engine.end("a-3", "it ended")
        running.bench.tick()
        with pytest.raises(Mistake, match=f"a: the canary with {NEW} is abandoned: .* died: it ended"):
            running.do(Promote(deployment="a"))


def test_each_replica_counts_as_dead_or_as_drained() -> None:
    with benched() as bench:

        def counts() -> tuple[int, int]:
            return bench.group.status().deaths, bench.group.status().drained

        bench.group.drain("a-1")
        bench.settle()
        assert (counts(), bench.engine.kept) == ((0, 1), [])
        bench.group.drain("a-2")
        bench.tick()
        bench.engine.end("a-2", "tritonserver was killed by SIGKILL")
        bench.settle()
        assert counts() == (1, 1)
        assert bench.lines[-2].endswith("a-2: died before it had drained: tritonserver was killed by SIGKILL")
        bench.engine.ready("a-3", "a process of 'm' died")
        bench.tick()
        assert counts() == (2, 1)
        bench.settle()
        assert (counts(), bench.engine.kept) == ((2, 1), ["a-3"])


def test_down_needs_the_name_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    assert main(["down"]) == 2
    assert capsys.readouterr().err.startswith("down: name the cluster that is to end, with --plan. Running: ")
    for arguments in ([str(plan)], ["--plan", str(plan)]):
        assert main(["down", *arguments]) == 0
        assert capsys.readouterr().out == f"{plan}: its cluster did not run.\n"


def test_command_without_a_plan_says_which_cluster_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = place.of_plan(tmp_path / "plan.toml")
    monkeypatch.setattr(place, "running", lambda: [here])
    for arguments, says in ((["scale", "a", "1"], True), (["scale", "a", "1", "--plan", here.name], False)):
        assert main(arguments) == 2  # it does not run
        assert capsys.readouterr().out.startswith(f"{here.name}: the only cluster that runs") == says


def test_replica_that_hangs_is_told_once_and_when_it_is_ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occupant, "UNREADY_S", 60.0)
    with benched() as bench:
        bench.group._limits = Limits(hung_s=90.0)
        probe, started = bench.group.occupants["a-1"].probe, len(bench.lines)
        assert probe is not None
        for unready_s in (20.0, 61.0, 62.0, 0.0, 0.0):
            monkeypatch.setattr(probe, "unready_s", lambda unready_s=unready_s: unready_s)
            bench.tick()
        assert [line[10:] for line in bench.lines[started:]] == [
            "a-1: has not said for 60 s that it is ready; after 90 s (hung_s) another takes its place",
            "a-1: is ready again after 60.0 s",
        ]


def test_deployment_that_gave_up_names_the_command_that_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST_WAIT_S", 0.0)
    scaling = ScalingTable(max=3, target_pending=8)
    for entry, command in ((ENTRY, "scale"), (msgspec.structs.replace(ENTRY, scaling=scaling), "update")):
        with benched(entry) as bench:
            bench.engine.end("a-1", "it ended")
            for number in (3, 4, 5):
                bench.tick()
                bench.engine.end(f"a-{number}", "no GPU")
            bench.tick()
            assert f"`{command}` tries again." in bench.lines[-1]
