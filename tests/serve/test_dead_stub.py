"""A model whose process dies: a new process answers the waiting requests, and nothing else is taken for a death.

The server is one of its own, because its processes are killed.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from types import NoneType

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from processes import alive, wait_until
from server_processes import IMPATIENT, model_that
from sleepers import sleeper
from tritonclient.utils import InferenceServerException

from serve import revival, stubs
from serve.launcher import Server, Settings, launch
from serve.management import api, loaded
from serve.revival import instances, reviving

WAITING = 50
CONFIG = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
GROUP = 'instance_group [ {{ name: "{}" count: {} kind: KIND_CPU }} ]'
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with a model that takes long to start: Triton starts a process to complete it, and one for the instance."""
    repository = tmp_path_factory.mktemp("models")
    sleeper(repository, "sleeper", CONFIG + GROUP.format("two", 2), fixed_ms=200)
    sleeper(repository, "named", CONFIG + GROUP.format("own_name", 1))
    sleeper(repository, "plain", CONFIG)
    model_that(repository, "slow", complete="time.sleep(1.6); return config", initialize="time.sleep(1.6)")
    settings = Settings(models=("sleeper", "named", "plain", "slow"), repository=repository, arguments=IMPATIENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stubs, "UNNOTICED_S", 1.2)
        with launch(settings) as running:
            patch.undo()
            yield running


def of(server: Server, model: str) -> set[int]:
    """The processes of a model."""
    return {pid for pid, name in instances(server).items() if name == model}


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
        old = of(server, "sleeper")
        os.kill(min(old), signal.SIGKILL)
        return Counter(await asyncio.gather(*requests)), old


def test_a_process_that_triton_ends_is_not_taken_for_dead(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its end and Triton's wait for it such a process is a zombie, which one look in a hundred sees."""
    reports: list[str] = []
    looks: Counter[int] = Counter()

    def is_zombie(pid: int) -> bool:
        looks[pid] += 1
        return looks[pid] == 3

    before = instances(server)
    monkeypatch.setattr("triton_batching.processes.is_zombie", is_zombie)
    with reviving(server, report=reports.append) as revivals:
        assert wait_until(lambda: len(looks) == len(before) and min(looks.values()) > 6, seconds=30)
    assert instances(server) == before
    assert sorted(before.values()) == ["named", "plain", "sleeper", "sleeper", "slow"]
    assert (reports, revivals.took_s, revivals.failure) == ([], [], None)


def test_waiting_requests_are_answered_by_the_new_process(server: Server) -> None:
    """The dead instance keeps its batch for ten seconds at most; each new one answers five requests a second."""
    reports: list[str] = []
    with reviving(server, report=reports.append):
        outcome, old = asyncio.run(kill_one_while_many_wait(server))
        assert set(outcome) <= {"answered", "failed"}
        # Without new processes 48 of 50 fail; with them, and the dead one taking a batch each second, 10.
        assert outcome["answered"] >= WAITING - 5
        assert wait_until(lambda: len(reports) == 1, seconds=60)
    # The model is the same one, with new instances in place of all the old ones.
    assert not alive(old)
    assert len(of(server, "sleeper")) == 2
    assert server.log.read_text().count("successfully unloaded") == 0


def test_a_reload_keeps_each_models_configuration(server: Server) -> None:
    """Of a model without an instance group Triton then names the instance `plain_0` in place of `plain_0_0`."""
    models = ("named", "plain")
    reports: list[str] = []
    with reviving(server, report=reports.append):
        for _ in range(2):
            dead = of(server, "named") | of(server, "plain")
            reports.clear()
            for pid in dead:
                os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: len(reports) == 2, seconds=60)
            starts = [f"a process of '{model}' died; the model was loaded again in " for model in models]
            assert all(report.startswith(start) for report, start in zip(sorted(reports), starts, strict=True))
            assert [len(of(server, model)) for model in models] == [1, 1]
            assert not set(instances(server)) & dead
    after = loaded.config(server.http_url, "named")
    assert after.instance_group[0].rate_limiter.priority == 2
    after.instance_group[0].ClearField("rate_limiter")
    assert after == server.configs["named"]


def test_a_model_that_is_unloaded_after_a_death_is_no_failure(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revival, "ABSENT_S", 1.0)
    reports: list[str] = []
    with reviving(server, report=reports.append) as revivals:
        os.kill(min(of(server, "plain")), signal.SIGKILL)
        assert wait_until(lambda: len(reports) == 1, seconds=60)
        api.call(server.http_url, "repository/models/plain/unload", {}, expected=NoneType, timeout_s=30)
        assert wait_until(lambda: not of(server, "plain"), seconds=30)
        assert not wait_until(lambda: revivals.failure is not None, seconds=2)
        assert len(reports) == 1
