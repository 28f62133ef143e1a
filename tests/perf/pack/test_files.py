"""The packed.pbtxt, compose and Kubernetes files that are written for a plan, and a real server."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from google.protobuf import text_format
from packing_plan import plan_path
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
from perf.studies.packing import prove
from perf.tune.tuned_file import WriteError
from serve.launcher import Settings, launch


def repository(tmp_path: Path) -> Path:
    copy = tmp_path / "repository" / "simulated_accelerator"
    copy.mkdir(parents=True)
    (copy / "1").symlink_to((REPOSITORY / "simulated_accelerator" / "1").resolve())
    (copy / "config.pbtxt").write_bytes((REPOSITORY / "simulated_accelerator" / "config.pbtxt").read_bytes())
    return copy.parent


def test_the_program_writes_configurations_and_manifests(tmp_path: Path) -> None:
    models, out = repository(tmp_path), tmp_path / "out"
    arguments = [str(plan_path(tmp_path)), "--out", str(out), "--repository", str(models)]
    assert main(arguments) == 0
    # 8 rows in 24 ms are 333 requests/s of a device; 167 are left, which 6 rows in at most 36 ms serve.
    placement = file.read(out / "placement.json", Placement)
    shares = [share for node in placement.nodes for share in node.shares]
    assert [share.rate_per_s for share in shares] == pytest.approx([1000 / 3, 500 / 3])
    assert [share.batch for share in shares] == [8, 6]
    before = text_format.Parse((models / "simulated_accelerator" / "config.pbtxt").read_text(), ModelConfig())
    for name, batch in (("packed", 8), ("packed_1", 6)):
        text = (models / "simulated_accelerator" / "configs" / f"{name}.pbtxt").read_text()
        config = text_format.Parse(text, ModelConfig())
        assert "# Time of one execution: fixed_ms + row_ms x rows." in text
        assert config.max_batch_size == batch
        (group,) = config.instance_group
        assert group == ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_GPU, gpus=[0])
        config.max_batch_size = before.max_batch_size
        config.ClearField("instance_group")
        before.ClearField("instance_group")
        assert config == before
    compose = yaml.safe_load((out / manifests.COMPOSE).read_text())["services"]
    assert [compose[f"device-{n}"]["command"][-1] for n in (0, 1)] == [
        "--model-config-name=packed",
        "--model-config-name=packed_1",
    ]
    for service in compose.values():
        assert service["environment"] == {"TRITON_ADMIN_SECRET": "${TRITON_ADMIN_SECRET:-}"}
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
    device = compose["device-1"]["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["device_ids"] == ["1"]
    assert (out / "placement.html").read_text().count("data-chart=") == 2


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
    return Model(name=name, rate_per_s=2, target_ms=2000, latency=latency, memory=Curve.line(0, 0, 4))


SHARED = Workload(devices=Devices(count=1, memory_bytes=1.0, kind="cpu"), models=(slow("one", 200), slow("two", 300)))


def shared_server() -> Server:
    (server,) = servers(pack(SHARED))
    return server


def test_kubernetes_runs_one_server_per_device() -> None:
    server = replace(shared_server(), devices=(0, 2))
    parts = list(yaml.safe_load_all(manifests.kubernetes([server], replace(SHARED.devices, kind="gpu"))))
    assert [part["kind"] for part in parts] == ["Deployment", "Service", "Service"]
    spec = parts[0]["spec"]
    assert spec["replicas"] == 2
    (container,) = spec["template"]["spec"]["containers"]
    assert "--rate-limit=execution_count" in container["args"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    # docker/serve.sh restricts the admin APIs by it, and makes one where there is none.
    secret = {"name": "triton-batching-admin", "key": "secret", "optional": True}
    assert container["env"] == [{"name": "TRITON_ADMIN_SECRET", "valueFrom": {"secretKeyRef": secret}}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    pod = spec["template"]["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
    assert {volume["name"] for volume in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert [port["name"] for port in parts[1]["spec"]["ports"]] == ["http", "grpc"]
    labels = spec["template"]["metadata"]["labels"]
    assert all(part["spec"]["selector"].items() <= labels.items() for part in parts[1:])


@pytest.mark.server
def test_models_on_a_device_exclude_each_other(tmp_path: Path) -> None:
    prove.build(SHARED.models, tmp_path, server_ms=0, server_row_ms=0)
    server = shared_server()
    packed_config.write(server, tmp_path, kind="cpu", command="python -m perf.pack plan.toml")
    settings = Settings(
        models=server.node.models, config_name="packed", repository=tmp_path, arguments=server.arguments
    )
    rows = np.zeros((1, 1, 32, 100), np.float32)
    with launch(settings) as running:

        def request(name: str) -> None:
            with Client(name, url=running.grpc_url, transport="grpc") as client:
                client.predict(rows)

        start = time.monotonic()
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(request, ("one", "two")))
        # 201 and 301 ms of sleep: less only where both slept at the same time. It cannot be too fast by chance.
        assert time.monotonic() - start >= 0.502
