"""Cores that are idle while requests wait: when `perf.why` says so, on values and on a real server."""

import asyncio
import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from google.protobuf import text_format
from sleepers import PLAIN, sleeper
from streams import counted as read_counters
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.async_connection import connect
from perf.simulate.batcher.rules import Rules
from perf.why import cores as module
from perf.why.__main__ import main
from perf.why.cores import Cores, changes, sentence
from perf.why.live import watch
from perf.why.prove_live import prove_live
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching import processes
from triton_batching.terminal import terminal

INPUT = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 4 ] } ]\n'
GROUP = "instance_group [ { count: 1 kind: KIND_CPU } ]"
ONE = f'name: "m" backend: "onnxruntime" max_batch_size: 8 dynamic_batching {{ }} {GROUP}'
THREADS = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
SECONDS = 10.0
# In 10 s 100 executions of 95 ms with 4 requests each, which waited for as long.
COUNTED = dataclasses.replace(
    Counters.none(),
    requests=400,
    rows=400,
    executions=100,
    queue_ns=400 * 95_000_000,
    compute_infer_ns=400 * 95_000_000,
    batches={4: 100},
    batches_ns={4: 100 * 95_000_000},
)
IDLE = Cores(server=1.1, machine=2.1, usable=4)
ALONE = Cores(server=0.1, machine=0.2, usable=2)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 4)


def proposed(config: str = ONE, counted: Counters = COUNTED, cores: Cores = IDLE) -> list[str]:
    parsed = text_format.Parse(config, ModelConfig())
    return [change.text for change in changes(parsed, Rules.of(parsed), counted, cores, SECONDS)]


def test_idle_cores_take_one_more_instance() -> None:
    assert proposed() == ["instance_group [ { count: 2 } ]"]
    assert proposed(ONE.replace("count: 1", "count: 2"), dataclasses.replace(COUNTED, batches_ns={4: 19 * 10**9})) == [
        "instance_group [ { count: 3 } ]"
    ]
    # Without a group onnxruntime has two on a CPU.
    two = dataclasses.replace(COUNTED, batches_ns={4: 19 * 10**9})
    assert proposed(ONE.replace(GROUP, ""), two) == ["instance_group [ { count: 3 } ]"]


def test_threads_that_the_configuration_limits_are_another_way() -> None:
    assert proposed(ONE + THREADS) == ["intra_op_thread_count: 4", "instance_group [ { count: 2 } ]"]
    assert proposed(ONE.replace("onnxruntime", "python") + THREADS) == ["instance_group [ { count: 2 } ]"]
    assert proposed(ONE + THREADS.replace('"1"', '"4"')) == ["instance_group [ { count: 2 } ]"]


@pytest.mark.parametrize(
    "cores",
    [
        Cores(),
        Cores(server=3.5, machine=3.6, usable=4),
        Cores(server=1.1, machine=3.5, usable=4),  # other programs use them
        Cores(server=1.9, machine=2.0, usable=2),  # a container's limit
    ],
)
def test_cores_that_are_in_use_or_unknown_take_none(cores: Cores) -> None:
    assert not proposed(cores=cores)


def test_instances_that_are_idle_or_on_a_gpu_take_none() -> None:
    assert not proposed(counted=dataclasses.replace(COUNTED, batches_ns={4: 7 * 10**9}))
    assert not proposed(counted=dataclasses.replace(COUNTED, queue_ns=400 * 40_000_000))
    assert not proposed(ONE.replace("KIND_CPU", "KIND_GPU"))


def test_the_sentence_has_the_numbers() -> None:
    parsed = text_format.Parse(ONE, ModelConfig())
    found = changes(parsed, Rules.of(parsed), COUNTED, IDLE, SECONDS)
    assert "used 1.1 of 4 cores, 1.9 had no work, and requests waited 95.0 ms for executions of 95.0 ms" in sentence(
        found, COUNTED, IDLE
    )
    assert "instance_group [ { count: 2 } ]" in sentence(found, COUNTED, IDLE)
    assert sentence([], COUNTED, IDLE) == ""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("idle")
    sleeper(folder, "sleeps", INPUT + "max_batch_size: 2 dynamic_batching { }", fixed_ms=40, row_ms=0)
    with launch(Settings(models=("sleeps",), repository=folder, arguments=PLAIN)) as server:
        yield server


@contextlib.contextmanager
def eight_clients(url: str) -> Iterator[None]:
    over = threading.Event()

    async def clients() -> None:
        async def client() -> None:
            while not over.is_set():
                await connection.infer("sleeps", {"X": np.zeros((1, 4), np.int32)})

        async with connect(url) as connection:
            await asyncio.gather(*(client() for _ in range(8)))

    thread = threading.Thread(target=lambda: asyncio.run(clients()))
    thread.start()
    try:
        read_counters(url, "sleeps", executions=1)
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.server
def test_a_server_whose_executions_sleep_is_told(triton: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own use is next to nothing; whether other programs leave the cores idle, the output says itself."""
    with eight_clients(triton.grpc_url):
        assert main(["sleeps", "--live", triton.http_url, "--seconds", "2", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    cores, counted = shown["cores"], shown["counted"]
    assert 0 < cores["server"] < cores["machine"]
    busy_s = sum(counted[name].get("2", 0) for name in ("batches_input_ns", "batches_ns", "batches_output_ns")) / 1e9
    waits = counted["queue_ns"] >= (counted["compute_input_ns"] + counted["compute_infer_ns"]) / 2
    told = cores["idle"] >= 0.15 * cores["usable"] and busy_s >= 0.8 * 2 and waits
    assert cores["changes"] == (["instance_group [ { count: 2 } ]"] if told else [])


@pytest.mark.server
def test_the_advice_is_measured_on_copies(triton: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a machine without other programs, for as long as the model executed."""
    with eight_clients(triton.grpc_url):
        watched = watch(triton.http_url, "sleeps", seconds=1, quiet=True)
        seconds = watched.counted.busy_ns / 1e9
        found = changes(watched.config, Rules.of(watched.config), watched.counted, ALONE, seconds)
        told = dataclasses.replace(watched, cores=ALONE, fuller=found, seconds=seconds)
        told.show(terminal())
        prove_live(terminal(), told, triton.settings.repository / "sleeps")
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "used 0.1 of 2 cores" in printed
    assert "4 rounds in turns" in printed
    assert re.search(r"instance_group \[ \{ count: 2 \} \] - \d\.\d\d \d", printed), printed
    assert "does not load" not in printed


@pytest.mark.server
def test_a_server_elsewhere_has_no_cores_here(triton: Server) -> None:
    with module.watching("192.0.2.1:8000") as elsewhere, module.watching(triton.grpc_url) as here:
        pass
    assert elsewhere == Cores()
    assert here.server is not None
