"""V906: cores that are idle while requests wait, from the CPU time of a real server and the time of its executions."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator

import pytest
from sleepers import PLAIN, send, sleeper
from streams import counted
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from perf.simulate.batcher.request import Request
from serve.doctor.__main__ import main
from serve.doctor.live import LiveServer, examine_live
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES
from serve.launcher import Server, Settings, launch

pytestmark = pytest.mark.server
INPUT = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 4 ] } ]\n'
# 20 executions of 0.3 s: far longer than the CPU time that a server needs to start.
REQUESTS = [Request(number=number, at=0, shapes={"X": (4,)}) for number in range(1, 41)]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cores")
    sleeper(folder, "sleeps", INPUT + "max_batch_size: 2 dynamic_batching { }", fixed_ms=300, row_ms=0)
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(len(REQUESTS))}
    with launch(Settings(models=("sleeps",), repository=folder, arguments=PLAIN, environment=environment)) as server:
        asyncio.run(send(server.grpc_url, "sleeps", REQUESTS))
        assert counted(server.grpc_url, "sleeps", executions=20).batches == {2: 20}
        yield server


def test_the_doctor_names_a_model_whose_executions_leave_cores_idle(
    triton: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(triton.settings.repository), "--select", "V906", "--format", "json", "--live", triton.http_url]
    assert main(words) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "V906"
    assert "try `count: 2` in instance_group" in finding["message"]


def test_cores_in_use_waits_for_the_delay_and_gpus_are_left_alone(triton: Server) -> None:
    live = LiveServer.read(triton.http_url, Repository(path=triton.settings.repository))
    counters = counted(triton.grpc_url, "sleeps", executions=20)
    assert live.cpu_s is not None
    assert live.cores is not None
    limit = 0.85 * live.cores * counters.busy_ns / 1e9

    def named(**changes: object) -> bool:
        return bool(examine_live(dataclasses.replace(live, **changes), [RULES["V906"]]))  # type: ignore[arg-type]

    def configured(**changes: int) -> dict[str, ModelConfig]:
        config = ModelConfig()
        config.CopyFrom(live.configs["sleeps"])
        config.dynamic_batching.max_queue_delay_microseconds = changes.get("delay_us", 0)
        config.instance_group[0].kind = changes.get("kind", ModelInstanceGroup.KIND_CPU)
        return {"sleeps": config}

    assert named(cpu_s=0.99 * limit)
    assert not named(cpu_s=1.01 * limit)
    assert not named(cpu_s=None)
    assert not named(cores=None)
    assert named(configs=configured())
    assert not named(configs=configured(delay_us=60_000_000))
    assert not named(configs=configured(kind=ModelInstanceGroup.KIND_GPU))
