"""What commands begin and refuse, and what a group counts; the engine's states are set by the test."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cluster_bench import ENTRY, NEW, benched, told

from serve.cluster import occupant, pace, place, plan_check, state
from serve.cluster.__main__ import main
from serve.cluster.control import Abandon, Canary, Drain, Promote, Scale, Update
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
CANARY = Canary(deployment="a", config_name=NEW, share=0.1)


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


def test_what_is_said_about_sequences(models: Path, golden: Callable[..., None]) -> None:
    """They need one replica and a door that sends nothing twice; scale looks at the configuration that runs."""
    with told(msgspec.structs.replace(COUNTER, replicas=3), repository=models) as three:
        three.refuses(Update(deployment="a", config_name="sequences"))
        three.refuses(Update(deployment="a", config_name="x" * 5000))
        three.does(Update(deployment="a", config_name="other"))
    with told(COUNTER, UPDATED, models) as running:
        running.refuses(Scale(deployment="a", replicas=3))
        running.does(Scale(deployment="a", replicas=0))
    with told(COUNTER, repository=models) as one:
        one.refuses(Update(deployment="a", config_name="sequences"))
        # New files with the same name.
        (models / "counter" / "config.pbtxt").write_text(f"{STATELESS} sequence_batching {{ }}")
        one.refuses(Update(deployment="a", keeps_config=True))
        assert not one.bench.group.is_updating
    golden("cluster_sequences", "\n".join([*three.said, *running.said, *one.said]), masks={"x{5000}": "x..."})


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


def test_what_commands_say_and_refuse(golden: Callable[..., None]) -> None:
    with told() as running:
        bench = running.bench
        for number, command in ((2, Update(deployment="a", config_name=NEW)), (3, CANARY)):
            bench.engine.room = number
            running.refuses(command)
        bench.engine.room = 100
        running.does(Drain(replica="a-1"))
        bench.tick()
        running.refuses(Drain(replica="a-2"))
        bench.settle()
        running.refuses(Promote(deployment="a"))
        running.refuses(Abandon(deployment="a"))
        for deployment, config_name in (("b", NEW), ("a", "dynamic"), ("a", "fast")):
            running.refuses(Canary(deployment=deployment, config_name=config_name, share=0.1))
        assert bench.group.canary is None
        running.does(CANARY)
        bench.tick()
        running.refuses(Promote(deployment="a"))
        bench.settle()
        running.refuses(CANARY)
        running.refuses(Update(deployment="a", config_name="baseline"))
        running.refuses(Drain(replica=bench.of("control").name))
        bench.engine.end(bench.of("canary").name, "it ended")
        bench.tick()
        running.refuses(Promote(deployment="a"))
        running.does(Scale(deployment="a", replicas=0))
        bench.tick()
        running.refuses(CANARY)
    with told() as updating:
        updating.does(Update(deployment="a", config_name=NEW))
        assert updating.bench.group.is_updating
    golden("cluster_commands", "\n".join([*running.said, *updating.said]))


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


def test_commands_name_the_cluster_that_they_are_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    here = place.of_plan(plan)
    monkeypatch.setattr(place, "running", lambda: [here])
    assert main(["down"]) == 2
    assert capsys.readouterr().err.startswith("down: name the cluster that is to end, with --plan. Running: ")
    for arguments in ([str(plan)], ["--plan", str(plan)]):
        assert main(["down", *arguments]) == 0
        assert capsys.readouterr().out == f"{plan}: its cluster did not run.\n"
    for arguments, says in ((["scale", "a", "1"], True), (["scale", "a", "1", "--plan", here.name], False)):
        assert main(arguments) == 2  # it does not run
        assert capsys.readouterr().out.startswith(f"{here.name}: the only cluster that runs") == says


def test_replica_that_hangs_is_told_once_and_when_it_is_ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occupant, "UNREADY_S", 60.0)
    with benched(limits=Limits(hung_s=90.0)) as bench:
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
