"""What `perf.why` predicts of its best change, against the real server with that change; and --live against one."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, SimpleNamespace

import numpy as np
import pytest
from bench import Bench
from google.protobuf import text_format
from processes import wait_until
from sleepers import PLAIN, send, sleeper
from streams import counted as read_counters
from tiny_models import lookup
from tritonclient.grpc.model_config_pb2 import ModelConfig
from unchecked import Connection, connect

from clients import Model
from perf.simulate.batcher.request import MS, Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.why.__main__ import main
from perf.why.changes import Diagnosis, diagnose
from serve.launcher import Server, Settings, launch
from serve.management import api, loaded, traces
from serve.management.statistics import Counters
from tests.perf.simulate.batcher.test_server import CASES, VARIABLE, requests

pytestmark = pytest.mark.server
# Every request of a prediction waits before the batcher looks: on a busy machine they would come too late for a batch.
HELD = 48


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A case of the batcher's tests, what goes through it, and the change that must be proposed."""

    case: str
    requests: list[Request]
    best: str


ASKED = {
    "seed": Asked(
        case="lengths_20_30_40",
        requests=requests(HELD, lengths=[20, 30, 40]),
        best="allow_ragged_batch: true on X",
    ),
    "two_inputs": Asked(
        case="two_inputs_one_of_them_ragged",
        requests=requests(HELD, lengths=[20, 20, 20, 30], names=["AX"]),
        best="allow_ragged_batch: true on X",
    ),
    "preferred": Asked(case="preferred_size_is_a_cap", requests=requests(HELD), best="no preferred_batch_size"),
    "unbatched": Asked(case="no_dynamic_batching", requests=requests(HELD), best="dynamic_batching { }"),
    "small": Asked(case="rows_3_of_8", requests=requests(HELD, rows=[3]), best="max_batch_size: 64"),
}


def studied(name: str) -> Diagnosis:
    question = ASKED[name]
    config = text_format.Parse(CASES[question.case].config, ModelConfig())
    rules = Rules.of(config, hold=HELD)
    return diagnose(
        config, rules, lambda rows: int(CASES[question.case].execution_ms * MS), lambda: Arrivals(question.requests)
    )


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, as its batchers are held for more requests than others' are, and as it traces.

    It has each configuration as asked about, with its best change, and one model more for --live.
    """
    folder = tmp_path_factory.mktemp("changed")
    for name, question in ASKED.items():
        best = studied(name).best
        assert best is not None
        assert best.change.config is not None
        milliseconds = CASES[question.case].execution_ms
        text = text_format.MessageToString(best.change.config)
        sleeper(folder, f"{name}_changed", text, fixed_ms=milliseconds, row_ms=0)
    # Without delay: with one, twelve clients never fill 16 rows, and ragged batches would wait for it each time.
    # Long beside what a client needs for its next request, so that some always wait, on a busy machine too.
    sleeper(folder, "live", VARIABLE + "max_batch_size: 16 dynamic_batching { }", fixed_ms=40, row_ms=0)
    models = ["live", *(f"{name}_changed" for name in ASKED)]
    trace = ("--trace-config", f"triton,file={folder.parent / 'trace.json'}", "--trace-config", "level=OFF")
    settings = Settings(
        models=tuple(models),
        repository=folder,
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(HELD)},
        arguments=PLAIN + trace,
    )
    with launch(settings) as server:
        yield server


@pytest.mark.parametrize("name", ASKED)
def test_the_prediction_of_the_change_holds(changed: Server, name: str) -> None:
    """That of the configuration as it is holds too: the tests of the batcher compare it on the same cases."""
    diagnosis, question = studied(name), ASKED[name]
    assert diagnosis.best is not None
    assert diagnosis.best.change.text == question.best
    asyncio.run(send(changed.grpc_url, f"{name}_changed", question.requests))
    predicted = diagnosis.best.outcome
    counted = read_counters(changed.grpc_url, f"{name}_changed", executions=len(predicted.executions))
    assert counted.rows_per_execution == pytest.approx(predicted.rows_per_execution, rel=0.05)
    assert diagnosis.gain(diagnosis.best) > 1.5


def test_a_running_server_is_explained_from_its_traces(changed: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve clients that wait for answers send three lengths: the shape is named, and ragged would run about six."""
    model, over = "live", threading.Event()

    async def client(connection: Connection, number: int) -> None:
        tensors = {"X": np.zeros((1, 20 + number % 3 * 10), np.int32)}
        while not over.is_set():
            await connection.infer(model, tensors)

    async def load() -> None:
        await send(changed.grpc_url, model, requests(HELD))  # what the batcher was held for
        async with connect(changed.grpc_url) as connection:
            await asyncio.gather(*(client(connection, number) for number in range(12)))

    before = traces.settings(changed.http_url, model)
    thread = threading.Thread(target=lambda: asyncio.run(load()))
    thread.start()
    try:
        read_counters(changed.grpc_url, model, executions=2 * HELD)
        assert main([model, "--live", changed.http_url, "--seconds", "2", "--format", "json"]) == 0
    finally:
        over.set()
        thread.join()
    output = json.loads(capsys.readouterr().out)
    counted = output["counted"]
    assert sum(counted["batches"].values()) == counted["executions"] > 0
    assert sum(int(rows) * count for rows, count in counted["batches"].items()) == counted["rows"]
    # Tracing is off again.
    assert traces.settings(changed.http_url, model) == before
    assert "not_known" not in output, output["not_known"]
    assert output["closed"][0]["rule"] == "shape", output
    assert output["closed"][0]["inputs"] == ["X"]
    assert output["best"] == "allow_ragged_batch: true on X"
    assert main([model, "--live", changed.http_url, "--seconds", "0.2"]) == 2
    assert "no request to 'live' was executed" in capsys.readouterr().err


def test_without_traces_the_statistics_are_reported(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, over = "simulated_accelerator", threading.Event()

    async def pictures() -> None:
        async with connect(server.grpc_url) as connection:
            while not over.is_set():
                await connection.infer(model, {"input.1": np.zeros((1, 1, 32, 100), np.float32)})

    before = Counters.read(server.grpc_url, model).executions
    thread = threading.Thread(target=lambda: asyncio.run(pictures()))
    thread.start()
    try:
        read_counters(server.grpc_url, model, executions=before + 1)
        page = ["--html", str(tmp_path / "why.html")]
        assert main([model, "--live", f"http://{server.http_url}/", "--seconds", "0.5", *page]) == 0
    finally:
        over.set()
        thread.join()
    output = " ".join(capsys.readouterr().out.split())
    written = (tmp_path / "why.html").read_text()
    for text in ("More requests at a time would batch", "the server does not trace"):
        assert text in output
        assert text in written
    assert main(["nothing", "--live", server.http_url]) == 2
    assert "unknown model" in " ".join(capsys.readouterr().err.split())
    assert main([model, "--live", server.grpc_url]) == 2
    assert "not that of gRPC" in " ".join(capsys.readouterr().err.split())


def test_counters_of_several_servers_are_no_explanation(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that was loaded again counts from 0, as another replica behind the same address does."""
    lookup(tmp_path)
    with bench.serving(("lookup",), tmp_path) as server:
        with Model("lookup", url=f"http://{server.http_url}") as model:
            model.predict(np.zeros((1, 1), np.float32))
        read_counters(server.grpc_url, "lookup", executions=1)

        def again(_: float) -> None:
            api.call(server.http_url, "repository/models/lookup/unload", {}, expected=NoneType)
            # The server fails if a load overtakes an unload.
            assert wait_until(lambda: loaded.index(server.http_url)[0].get("reason") == "unloaded", seconds=30)
            api.call(server.http_url, "repository/models/lookup/load", {}, expected=NoneType, timeout_s=30.0)

        monkeypatch.setattr("perf.why.live.time", SimpleNamespace(sleep=again))
        assert main(["lookup", "--live", server.http_url, "--seconds", "1"]) == 2
    assert "several servers answer there, or the model was loaded again" in capsys.readouterr().err
