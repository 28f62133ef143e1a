"""The plan files that are read, the packed.pbtxt, compose and Kubernetes files that are written, and a real server."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from clients import Model as Client
from export.repository import REPOSITORY
from perf.measure.ramp import Level
from perf.measure.service_line import Size
from perf.measure.service_profile import write
from perf.memory.__main__ import main as memory
from perf.pack import manifests, packed_config, plan_file
from perf.pack.__main__ import main
from perf.pack.algorithms import pack
from perf.pack.placement import Placement
from perf.pack.servers import Server, servers
from perf.pack.workload import Curve, Devices, Model, Workload
from perf.records.measurement import AnalyzerResult
from perf.studies.packing import stand_in
from perf.tune.tuned_file import WriteError
from serve.cluster.plan_file import read as read_cluster_plan
from serve.launcher import Settings, launch
from serve.management.statistics import Counters
from tests.perf.memory.test_limits import unknown_branch
from tests.perf.simulate.test_simulate import ramp
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

PLAN = """
arrivals = "uniform"
[devices]
count = 4
memory_mib = 1000
[[models]]
name = "simulated_accelerator"
rate_per_s = 500
p99_ms = 60
latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }
weights_mib = 50
activation_mib = { 8 = 16, 1 = 2 }
"""


def plan_path(tmp_path: Path, text: str = PLAN) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_file_is_read(tmp_path: Path) -> None:
    workload = plan_file.read(plan_path(tmp_path))
    (model,) = workload.models
    assert workload.devices == Devices(count=4, memory_bytes=1000 * 2**20)
    assert [model.latency.at(rows) for rows in (1, 2, 8)] == [20.5, 21.0, 24.0]
    assert [model.memory.at(rows) / 2**20 for rows in (1, 8)] == [52, 66]
    like_users = plan_path(tmp_path, PLAN.replace('arrivals = "uniform"', ""))
    assert (workload.arrivals, plan_file.read(like_users).arrivals) == ("uniform", "poisson")


def test_the_plan_of_the_nexus_paper_as_a_file() -> None:
    placement = pack(plan_file.read(Path("perf/pack/plans/nexus.toml")))
    assert placement.nodes[0].models == ("A", "B")
    assert placement.nodes[0].duty_ms == pytest.approx(125)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count = 4", "count = 0", r"\[devices\]: count = 0 must be a number from 1e-09 to 1000000"),
        ("p99_ms = 60", 'p99_ms = "60"', r"model simulated_accelerator: p99_ms = '60' must be a number"),
        ("rate_per_s = 500", "rate_per_s = inf", "rate_per_s = inf must be a number from 1e-09 to 1000000"),
        ("rate_per_s = 500", f"rate_per_s = {2**64}", "rate_per_s = 18446744073709551616 must be a number from 1e-09"),
        ("max_batch_size = 8", "max_batch_size = inf", "max_batch_size = inf must be a number from 1e-09 to 65536"),
        ("max_batch_size = 8", "max_batch_size = 64e6", "max_batch_size = 64000000.0 must be a number from 1e-09"),
        ("memory_mib = 1000", "memory_mib = 1e308", r"memory_mib = 1e\+308 must be a number from 1e-09 to 1073"),
        ("p99_ms = 60", "p99_ms = nan", "p99_ms = nan must be a number from 1e-09"),
        ("weights_mib = 50", "weights_mib = nan", "weights_mib = nan must be a number from 0 to 1073741824"),
        ("8 = 16, 1 = 2", "8 = inf, 1 = 2", "activation_mib: 8 = inf: batch sizes are 1 to 65536, values 0"),
        ("rate_per_s = 500", "rate_per_s = 5e-324", "rate_per_s = 5e-324 must be a number from 1e-09"),
        ("fixed = 20, row = 0.5", "fixed = 0, row = 0", "latency_ms of the smallest batch is 0"),
        pytest.param("count = 4", f"count = 1{'0' * 5000}", "cannot be read as TOML", id="digits"),
        pytest.param("[devices]", f"x = {'[' * 10**5}", "cannot be read as TOML", id="depth"),
        ("p99_ms", "p98_ms", "p98_ms is not known. Known:"),
        ("row = 0.5, ", "", "latency_ms as a line needs the keys fixed, max_batch_size, row"),
        ('"simulated_accelerator"', '"../outside/ranker"', "the name of a model is that of its folder"),
        ('"simulated_accelerator"', '".."', "the name of a model is that of its folder"),
        ("8 = 16, 1 = 2", "8 = 1, 1 = 2", "must not fall as the batch grows"),
        ("8 = 16, 1 = 2", "x = 1", "write values by batch size as { 1 = 20.5"),
        ('"uniform"', '"bursty"', "write uniform or poisson"),
        ("[devices]", "[devices", "cannot be read as TOML"),
        (
            "latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }",
            "",
            "triton-batching profile simulated_acc",
        ),
        ("weights_mib = 50", "", "is no ONNX file whose memory can be estimated"),
    ],
)
def test_a_wrong_plan_file_is_an_error_with_place_and_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = PLAN.replace(old, new)
    if "weights_mib" not in text:
        text = text.replace("activation", "#")
    with pytest.raises(Mistake, match=f"(?i){message}"):
        plan_file.read(plan_path(tmp_path, text), records=tmp_path)


def test_memory_of_an_onnx_model_is_what_perf_memory_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """text_recognition holds 19 MiB at batch 32 with the memory pattern, and 11 MiB without it."""
    text = PLAN.split("weights_mib")[0].replace("simulated_accelerator", "text_recognition")
    (model,) = plan_file.read(plan_path(tmp_path, text.replace("max_batch_size = 8", "max_batch_size = 32"))).models
    assert memory(["text_recognition", "--batch", "1,8,32", "--format", "json"]) == 0
    held = {each["batch"]: each["held"] for each in json.loads(capsys.readouterr().out)["batches"]}
    assert {rows: model.memory.at(rows) for rows in held} == held


def test_memory_without_an_upper_bound_must_be_given(tmp_path: Path) -> None:
    folder = tmp_path / "sliced"
    (folder / "1").mkdir(parents=True)
    unknown_branch(folder / "1").rename(folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text('name: "sliced"\nbackend: "onnxruntime"\nmax_batch_size: 8\n')
    text = PLAN.split("weights_mib")[0].replace("simulated_accelerator", "sliced")
    with pytest.raises(Mistake, match=r"has no upper bound.*Measure it and give weights_mib"):
        plan_file.read(plan_path(tmp_path, text), repository=tmp_path)


def test_latency_is_taken_from_a_service_time_record(tmp_path: Path) -> None:
    counted = replace(
        Counters.none(),
        requests=80,
        rows=80,
        executions=10,
        compute_infer_ns=240_000_000,
        batches={8: 10},
        batches_ns={8: 240_000_000},
    )
    measured = AnalyzerResult(window_ms=250, windows=(), throughput_rows_per_s=320.0)
    # A size that was measured 1 ms faster than a smaller one: both take their mean. 10 executions of 24 ms in 0.25 s
    # leave 1 ms between.
    times_ms = {rows: 20.0 + rows - (2 if rows == 5 else 0) for rows in range(1, 9)}
    record = replace(
        ramp(),
        model="simulated_accelerator",
        machine=Machine.this(),
        sizes=tuple(Size(rows=b, executions=100_000, mean_us=1e3 * ms, error_us=1.0) for b, ms in times_ms.items()),
        alone_us=21e3,
        levels=(Level(concurrency=16, seconds=0.25, measured=measured, counted=counted),),
    )
    write(record, tmp_path)
    text = PLAN.replace("latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }", "")
    (model,) = plan_file.read(plan_path(tmp_path, text), records=tmp_path).models
    assert [model.latency.at(rows) for rows in range(1, 9)] == pytest.approx(
        [22, 23, 24, 24.5, 24.5, 27, 28, 29], abs=0.01
    )
    # A ramp of another variant is as good; one that stopped below max_batch_size is not of all sizes.
    (tmp_path / record.file_name).unlink()
    write(replace(record, config_name="dynamic"), tmp_path)
    assert plan_file.read(plan_path(tmp_path, text), records=tmp_path).models[0].latency.largest == 8
    write(replace(record, config_name="dynamic", max_batch_size=4), tmp_path)
    (tmp_path / "simulated_accelerator.dynamic.b8.k1.json").unlink()
    with pytest.raises(Mistake, match="went up to 4 of 8 rows only"):
        plan_file.read(plan_path(tmp_path, text), records=tmp_path)


def repository(tmp_path: Path) -> Path:
    copy = tmp_path / "repository" / "simulated_accelerator"
    copy.mkdir(parents=True)
    (copy / "1").symlink_to((REPOSITORY / "simulated_accelerator" / "1").resolve())
    (copy / "config.pbtxt").write_bytes((REPOSITORY / "simulated_accelerator" / "config.pbtxt").read_bytes())
    return copy.parent


def test_the_program_writes_configurations_and_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, out = repository(tmp_path), tmp_path / "out"
    arguments = [str(plan_path(tmp_path)), "--out", str(out), "--repository", str(models)]
    assert main(arguments) == 0
    # 8 rows in 24 ms are 333 requests/s of a device; 167 are left, which 6 rows in at most 36 ms serve.
    placement = Placement.read(out / "placement.json")
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
    # The front door would send half of the requests to each device.
    assert "no cluster.packed.toml: simulated_accelerator on unequal devices" in capsys.readouterr().out
    assert not (out / manifests.CLUSTER).exists()
    assert main([*arguments, "--from", str(out / "placement.json")]) == 0
    assert "0 moves: every model stays." in capsys.readouterr().out


def test_a_placement_is_a_plan_of_a_cluster(tmp_path: Path) -> None:
    two = tmp_path / 'two "models"'
    shutil.copytree(repository(tmp_path), two, symlinks=True)
    shutil.copytree(two / "simulated_accelerator", two / "other", symlinks=True)
    text = PLAN.replace("rate_per_s = 500", "rate_per_s = 10").replace("p99_ms = 60", "p99_ms = 400")
    extra = text[text.index("[[models]]") :].replace('"simulated_accelerator"', '"other"').replace("400", "500")
    plan = plan_path(tmp_path, text + extra)
    out = tmp_path / "out"
    assert main([str(plan), "--out", str(out), "--repository", str(two)]) == 0
    found = read_cluster_plan(out / manifests.CLUSTER)
    assert found.repository == two
    (deployment,) = found.deployment
    assert (set(deployment.models), deployment.replicas) == ({"other", "simulated_accelerator"}, 1)
    assert (deployment.p99_ms, deployment.gpus, deployment.config_name) == (500, 1, "packed")
    assert deployment.arguments == ("--rate-limit=execution_count",)


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
    (server, _) = servers(Placement.read(out / "placement.json"))
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
    stand_in.build(SHARED.models, tmp_path, server_ms=0, server_row_ms=0)
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
