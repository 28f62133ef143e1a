"""The packed.pbtxt, compose and Kubernetes files that are written for a plan, and a real server."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from clients import Model as Client
from export.repository import REPOSITORY
from perf.pack import manifests, packed_config
from perf.pack.__main__ import main
from perf.pack.algorithms import pack
from perf.pack.placement import Placement
from perf.pack.servers import Server, servers
from perf.pack.workload import Curve, Devices, Model, Workload
from perf.records import file
from perf.tune.tuned_file import WriteError
from serve.launcher import Settings, launch
from tests.perf.pack.test_plan_file import PLAN, plan_path


def repository(tmp_path: Path) -> Path:
    copy = tmp_path / "repository" / "simulated_accelerator"
    copy.mkdir(parents=True)
    (copy / "1").symlink_to((REPOSITORY / "simulated_accelerator" / "1").resolve())
    (copy / "config.pbtxt").write_bytes((REPOSITORY / "simulated_accelerator" / "config.pbtxt").read_bytes())
    return copy.parent


@pytest.mark.slow
def test_the_program_writes_configurations_and_manifests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    models, out = repository(tmp_path), tmp_path / "out"
    assert main([str(plan_path(tmp_path)), "--out", str(out), "--repository", str(models)]) == 0
    golden("pack_plan", capsys.readouterr().out)
    # 8 rows in 24 ms are 333 requests/s of a device; 167 are left, which 6 rows in at most 36 ms serve.
    placement = file.read(out / "placement.json", Placement)
    shares = [share for node in placement.nodes for share in node.shares]
    assert [share.rate_per_s for share in shares] == pytest.approx([1000 / 3, 500 / 3])
    assert [share.batch for share in shares] == [8, 6]
    before = text_format.Parse((models / "simulated_accelerator" / "config.pbtxt").read_text(), ModelConfig())
    for name, batch in (("packed", 8), ("packed_1", 6)):
        text = (models / "simulated_accelerator" / "configs" / f"{name}.pbtxt").read_text()
        config = text_format.Parse(text, ModelConfig())
        assert config.max_batch_size == batch
        (group,) = config.instance_group
        assert group == ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_GPU, gpus=[0])
        config.max_batch_size = before.max_batch_size
        config.ClearField("instance_group")
        before.ClearField("instance_group")
        assert config == before
    golden("pack_compose", (out / manifests.COMPOSE).read_text())
    assert (out / "placement.html").read_text().count("data-chart=") == 2


def test_a_plan_says_how_many_are_late_and_in_how_many_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    """The name of a model may look like markup."""
    text = PLAN.replace('"uniform"', '"poisson"').replace("rate_per_s = 500", "rate_per_s = 100")
    plan = plan_path(tmp_path, text.replace("simulated_accelerator", "[bold]"))
    assert main([str(plan), "--out", str(tmp_path / "out"), "--repository", str(tmp_path)]) == 0
    golden("pack_plan_poisson", capsys.readouterr().out)


@pytest.mark.slow
def test_a_file_written_by_hand_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, out = repository(tmp_path), tmp_path / "out"
    arguments = [str(plan_path(tmp_path)), "--out", str(out), "--repository", str(models)]
    assert main(arguments) == 0
    (out / manifests.COMPOSE).write_text("services: {}\n")
    assert main(arguments) == 2
    assert "compose.packed.yaml: not written by this program" in capsys.readouterr().err
    (out / manifests.COMPOSE).unlink()
    path = models / "simulated_accelerator" / "configs" / "packed.pbtxt"
    path.write_text(path.read_text().replace("count: 1", "count: 2"))
    assert main(arguments) == 2
    assert "written or changed by hand" in capsys.readouterr().err
    (server, _) = servers(file.read(out / "placement.json", Placement))
    with pytest.raises(WriteError):
        packed_config.write(server, models, kind="gpu", command="c")


def slow(name: str, fixed: float) -> Model:
    latency = Curve.line(fixed, 1, 4)
    return Model(name=name, rate_per_s=20, target_ms=2000, latency=latency, memory=Curve.line(0, 0, 4))


SHARED = Workload(devices=Devices(count=1, memory_bytes=1.0, kind="cpu"), models=(slow("one", 20), slow("two", 30)))


def shared_server() -> Server:
    (server,) = servers(pack(SHARED))
    return server


def test_kubernetes_runs_one_server_per_device(golden: Callable[..., None]) -> None:
    server = replace(shared_server(), devices=(0, 2))
    golden("pack_kubernetes", manifests.kubernetes([server], replace(SHARED.devices, kind="gpu")))


@pytest.mark.server
def test_a_device_runs_one_model_at_a_time_the_one_with_the_fewest_executions(tmp_path: Path) -> None:
    """A server of its own, since the rate limiter is an option of the server.

    Sleeps take less only where two are at the same time. Model two waits for four requests, and one has run four times:
    so all of the four run before another one of model one, whose requests came first.
    """
    server = shared_server()
    for name, fixed_ms in (("one", "20"), ("two", "30")):
        folder = repository(tmp_path / "copies" / name) / "simulated_accelerator"
        text = (folder / "config.pbtxt").read_text().replace("simulated_accelerator", name)
        (folder / "config.pbtxt").write_text(text.replace('"20"', f'"{fixed_ms}"').replace('"0.5"', '"1"'))
        folder.rename(tmp_path / name)
    packed_config.write(server, tmp_path, kind="cpu", command="python -m perf.pack plan.toml")
    settings = Settings(
        models=server.node.models,
        config_name="packed",
        repository=tmp_path,
        arguments=server.arguments,
        environment={"TRITONSERVER_DELAY_SCHEDULER": "4"},
    )
    rows = np.zeros((server.node.shares[0].batch, 1, 32, 100), np.float32)
    answered = []
    with launch(settings) as running, ThreadPoolExecutor(12) as threads:

        def request(name: str) -> None:
            with Client(name, url=running.grpc_url, transport="grpc") as client:
                client.predict(rows)
            answered.append(name)

        list(threads.map(request, ["one"] * 4))
        start = time.monotonic()
        list(threads.map(request, [*["one"] * 8, *["two"] * 4]))
        assert time.monotonic() - start >= 8 * 0.024 + 4 * 0.034
    first, last = answered.index("two"), len(answered) - answered[::-1].index("two")
    assert answered[first:last].count("one") <= 1
