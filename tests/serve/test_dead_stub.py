"""A model whose process dies: a new process answers the waiting requests; during the start it is an error at once."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from types import NoneType

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from processes import alive, wait_until
from server_processes import IMPATIENT, model_that
from sleepers import PLAIN, sleeper
from tiny_models import python_model
from tritonclient.utils import InferenceServerException

from serve import revival, stubs
from serve.launcher import LaunchError, Server, Settings, launch
from serve.management import api, loaded
from serve.revival import instances, reviving

WAITING = 50
CONFIG = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
pytestmark = pytest.mark.server


async def ask(client: triton.InferenceServerClient) -> str:
    tensor = triton.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 1), dtype=np.int32))
    try:
        await client.infer("sleeper", [tensor], client_timeout=60)
    except InferenceServerException as error:
        return "failed" if "is not healthy" in str(error) else str(error)
    return "answered"


async def kill_one_while_many_wait(server: Server) -> tuple[Counter[str], set[int]]:
    """The outcomes of waiting requests, each a full batch, and the processes from before the death."""
    async with triton.InferenceServerClient(server.grpc_url) as client:
        requests = [asyncio.create_task(ask(client)) for _ in range(WAITING)]
        while not any(request.done() for request in requests):
            await asyncio.sleep(0.01)
        old = set(instances(server))
        os.kill(min(old), signal.SIGKILL)
        return Counter(await asyncio.gather(*requests)), old


@pytest.mark.parametrize("count", [1, 2])
def test_waiting_requests_are_answered_by_the_new_process(tmp_path: Path, count: int) -> None:
    """The dead instance keeps its batch for ten seconds at most; each new one answers five requests a second."""
    reports: list[str] = []
    sleeper(tmp_path, "sleeper", f"{CONFIG}instance_group [ {{ count: {count} kind: KIND_CPU }} ]", fixed_ms=200)
    settings = Settings(models=("sleeper",), repository=tmp_path, arguments=(*PLAIN, *IMPATIENT))
    with launch(settings) as server, reviving(server, report=reports.append):
        outcome, old = asyncio.run(kill_one_while_many_wait(server))
        assert set(outcome) <= {"answered", "failed"}
        # Without new processes 48 of 50 fail; with them, and the dead one taking a batch each second, 10.
        assert outcome["answered"] >= WAITING - 5
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        # The model is the same one, with new instances in place of all the old ones.
        assert not alive(old)
        assert list(instances(server).values()) == ["sleeper"] * count
        assert server.log.read_text().count("successfully unloaded") == 0


def test_a_reload_keeps_each_models_configuration(tmp_path: Path) -> None:
    """Of a model without an instance group Triton then names the instance `plain_0` in place of `plain_0_0`."""
    sleeper(tmp_path, "named", f'{CONFIG}instance_group [ {{ name: "own_name" count: 1 kind: KIND_CPU }} ]')
    sleeper(tmp_path, "plain", CONFIG)
    models = ("named", "plain")
    reports: list[str] = []
    with launch(Settings(models=models, repository=tmp_path)) as server, reviving(server, report=reports.append):
        for _ in range(2):
            dead = instances(server)
            reports.clear()
            for pid in dead:
                os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: len(reports) == 2, seconds=60)
            starts = [f"a process of '{model}' died; the model was loaded again in " for model in models]
            assert all(report.startswith(start) for report, start in zip(sorted(reports), starts, strict=True))
            assert sorted(instances(server).values()) == [*models]
            assert not set(instances(server)) & set(dead)
        after = loaded.config(server.http_url, "named")
        assert after.instance_group[0].rate_limiter.priority == 2
        after.instance_group[0].ClearField("rate_limiter")
        assert after == server.configs["named"]


@pytest.mark.parametrize(
    ("where", "body", "message"),
    [
        ("top", "os._exit(3)", r"ended with code 3"),
        ("complete", "os.kill(os.getpid(), 9)", r"was killed by SIGKILL"),
        ("initialize", "os._exit(3)", r"Stub process 'dying_0' is not healthy"),
    ],
)
def test_a_process_that_dies_while_it_loads_ends_the_start(tmp_path: Path, where: str, body: str, message: str) -> None:
    model_that(tmp_path, "dying", **{where: f"time.sleep(0.5); {body}"})  # so that it is seen first
    settings = Settings(models=("dying",), repository=tmp_path)
    with pytest.raises(LaunchError, match=message) as failed, launch(settings):
        pass
    assert "'dying'" in str(failed.value)
    assert "not ready after" not in str(failed.value)


def test_a_slow_start_is_not_taken_for_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton starts a process to complete the configuration and one for the instance; each may take its time."""
    monkeypatch.setattr(stubs, "UNNOTICED_S", 1.2)
    model_that(tmp_path, "slow", complete="time.sleep(1.6); return config", initialize="time.sleep(1.6)")
    python_model(tmp_path, "quick", "return []")
    with launch(Settings(models=("slow", "quick"), repository=tmp_path)) as server:
        assert sorted(instances(server).values()) == ["quick", "slow"]


def test_a_process_that_triton_ends_is_not_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its end and Triton's wait for it such a process is a zombie, which one look in a hundred sees."""
    sleeper(tmp_path, "sleeper", CONFIG)
    python_model(tmp_path, "other", "return []")
    reports: list[str] = []
    looks: Counter[int] = Counter()

    def is_zombie(pid: int) -> bool:
        looks[pid] += 1
        return looks[pid] == 3

    with launch(Settings(models=("sleeper", "other"), repository=tmp_path, arguments=PLAIN)) as server:
        before = instances(server)
        monkeypatch.setattr("triton_batching.processes.is_zombie", is_zombie)
        with reviving(server, report=reports.append) as revivals:
            assert wait_until(lambda: len(looks) == 2 and min(looks.values()) > 6, seconds=30)
        assert instances(server) == before
    assert (reports, revivals.took_s, revivals.failure) == ([], [], None)


def test_a_model_that_is_unloaded_after_a_death_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revival, "ABSENT_S", 1.0)
    sleeper(tmp_path, "sleeper", CONFIG)
    python_model(tmp_path, "other", "return []")
    reports: list[str] = []
    with (
        launch(Settings(models=("sleeper", "other"), repository=tmp_path)) as server,
        reviving(server, report=reports.append) as revivals,
    ):
        os.kill(min(pid for pid, model in instances(server).items() if model == "sleeper"), signal.SIGKILL)
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        api.call(server.http_url, "repository/models/sleeper/unload", {}, expected=NoneType, timeout_s=30)
        assert wait_until(lambda: list(instances(server).values()) == ["other"], seconds=30)
        assert not wait_until(lambda: revivals.failure is not None, seconds=2)
        assert len(reports) == 1
