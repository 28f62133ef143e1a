"""A model whose process dies: a new process answers the waiting requests; during the start it is an error at once."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from processes import alive, wait_until
from server_processes import model_that
from sleepers import sleeper
from tiny_models import python_model
from tritonclient.utils import InferenceServerException

from serve import revival
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


@contextmanager
def served(repository: Path, groups: str, reports: list[str]) -> Iterator[Server]:
    sleeper(repository, "sleeper", f"{CONFIG}{groups}", fixed_ms=200)
    with (
        launch(Settings(models=("sleeper",), repository=repository)) as server,
        reviving(server, report=reports.append),
    ):
        yield server


@pytest.mark.parametrize("count", [1, 2])
def test_what_waits_is_answered_by_the_new_process(tmp_path: Path, count: int) -> None:
    """The dead instance keeps its batch for ten seconds at most; each new one answers five requests a second."""
    reports: list[str] = []
    with served(tmp_path, f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]", reports) as server:
        outcome, old = asyncio.run(kill_one_while_many_wait(server))
        assert set(outcome) <= {"answered", "failed"}
        # Without new processes 48 of 50 fail; with them, and the dead one taking a batch each second, 10.
        assert outcome["answered"] >= WAITING - 5
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        assert reports[0].startswith("a process of 'sleeper' died; the model was loaded again in ")
        # The model is the same one, with new instances in place of all the old ones.
        assert not alive(old)
        assert list(instances(server).values()) == ["sleeper"] * count
        assert server.log.read_text().count("successfully unloaded") == 0
        again, _ = asyncio.run(kill_one_while_many_wait(server))
        assert again["answered"] >= WAITING - 5


def test_the_configuration_stays_as_it_was(tmp_path: Path) -> None:
    reports: list[str] = []
    with served(tmp_path, 'instance_group [ { name: "own_name" count: 1 kind: KIND_CPU } ]', reports) as server:
        os.kill(min(instances(server)), signal.SIGKILL)
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        after = loaded.config(server.http_url, "sleeper")
        assert after.instance_group[0].rate_limiter.priority == 1
        after.instance_group[0].ClearField("rate_limiter")
        assert after == server.configs["sleeper"]


def test_a_model_without_an_instance_group_gets_a_new_process(tmp_path: Path) -> None:
    """Triton then names its instance sleeper_0 in place of sleeper_0_0."""
    reports: list[str] = []
    with served(tmp_path, "", reports) as server:
        dead = instances(server)
        assert list(dead.values()) == ["sleeper"]
        os.kill(min(dead), signal.SIGKILL)
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        assert reports[0].startswith("a process of 'sleeper' died; the model was loaded again in ")
        assert list(instances(server).values()) == ["sleeper"]
        assert not set(instances(server)) & set(dead)


@pytest.mark.parametrize(
    ("where", "body", "message"),
    [
        ("top", "os._exit(3)", r"ended with code 3"),
        ("complete", "os._exit(3)", r"ended with code 3"),
        ("complete", "os.kill(os.getpid(), 9)", r"was killed by SIGKILL"),
        ("initialize", "os._exit(3)", r"Stub process 'dying_0' is not healthy"),
        ("initialize", "os.kill(os.getpid(), 9)", r"Stub process 'dying_0' is not healthy"),
    ],
)
def test_a_process_that_dies_while_it_loads_ends_the_start(tmp_path: Path, where: str, body: str, message: str) -> None:
    model_that(tmp_path, "dying", **{where: f"time.sleep(0.5); {body}"})
    settings = Settings(models=("dying",), repository=tmp_path)
    with pytest.raises(LaunchError, match=message) as failed, launch(settings):
        pass
    assert "'dying'" in str(failed.value)
    assert "not ready after" not in str(failed.value)


def test_a_slow_start_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    """Triton starts a process to complete the configuration and one for the instance; each may take its time."""
    model_that(tmp_path, "slow", complete="time.sleep(4); return config", initialize="time.sleep(4)")
    python_model(tmp_path, "quick", "return []")
    with launch(Settings(models=("slow", "quick"), repository=tmp_path)) as server:
        assert sorted(instances(server).values()) == ["quick", "slow"]


def test_a_model_that_somebody_unloads_after_a_death_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revival, "ABSENT_S", 1.0)
    sleeper(tmp_path, "sleeper", CONFIG)
    python_model(tmp_path, "other", "return []")
    reports: list[str] = []
    with (
        launch(Settings(models=("sleeper", "other"), repository=tmp_path)) as server,
        reviving(server, report=reports.append) as done,
    ):
        os.kill(min(pid for pid, model in instances(server).items() if model == "sleeper"), signal.SIGKILL)
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        api.call(server.http_url, "repository/models/sleeper/unload", {}, expected=NoneType, timeout_s=30)
        assert wait_until(lambda: list(instances(server).values()) == ["other"], seconds=30)
        assert not wait_until(lambda: done.failure is not None, seconds=3)
        assert len(reports) == 1
