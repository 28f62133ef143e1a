"""`perf.why --live` on a server that `python -m serve` started, with and without an option for traces."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from serving_program import end, printed, program
from sleepers import PLAIN, sleeper
from streams import counted

from clients.async_connection import Connection, connect
from perf.why.__main__ import main
from serve.launcher import Settings, launch
from serve.management import traces
from serve.resources import loopback_port
from serve.server_flags import tracing, with_traces

pytestmark = pytest.mark.server
FIXED = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] max_batch_size: 4 dynamic_batching { }'
# Three full batches: whatever the batcher does, full batches wait. Few requests, because tracing can end a server.
CLIENTS, EXECUTION_MS = 12, 200


@contextmanager
def loaded(grpc_url: str) -> Iterator[None]:
    """Clients that wait for each answer."""
    over = threading.Event()

    async def client(connection: Connection) -> None:
        while not over.is_set():
            await connection.infer("live", {"X": np.zeros((1, 1), np.int32)})

    async def load() -> None:
        async with connect(grpc_url) as connection:
            await asyncio.gather(*(client(connection) for _ in range(CLIENTS)))

    thread = threading.Thread(target=lambda: asyncio.run(load()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_server_of_serve_is_explained_and_keeps_no_trace_that_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper(tmp_path / "models", "live", FIXED, fixed_ms=EXECUTION_MS, row_ms=0)
    output, page = tmp_path / "output.txt", tmp_path / "why.html"
    serving = program(tmp_path / "models", output, "--model", "live")
    try:
        assert printed(output, "gRPC clients take --url"), output.read_text()
        http, grpc = re.findall(r"(?:HTTP|gRPC) (127\.0\.0\.1:\d+)", " ".join(output.read_text().split()))[:2]
        before = traces.settings(http, "live")
        assert before["trace_level"] == ["OFF"]
        with loaded(grpc):
            counted(grpc, "live", executions=2)
            assert main(["live", "--live", http, "--seconds", "1", "--html", str(page)]) == 0
        assert traces.settings(http, "live") == before
        folder = Path(before["trace_file"]).parent
        assert re.fullmatch(r"triton-batching-[0-9a-f]{12}", folder.name)
        assert not (folder / "trace.json.0").exists()  # others are of requests that were in the server at the end
    finally:
        end(serving)
    assert not folder.exists()
    answer = capsys.readouterr()
    assert "why a batch was closed" in answer.out
    assert "not known" not in answer.out
    watching, reading, replaying = answer.err.splitlines()
    assert watching == "watching live for 1 s"
    assert re.fullmatch(r"reading [1-9]\d* files of traces", reading)
    assert re.fullmatch(r"replaying [1-9]\d* requests, as they were and with each change", replaying)
    assert "Why batches were closed" in page.read_text()


def test_a_server_that_sends_its_traces_away_is_explained_by_its_counters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper(tmp_path, "live", FIXED, fixed_ms=EXECUTION_MS, row_ms=0)
    url = f"http://127.0.0.1:{loopback_port(())}/v1/traces"
    arguments = (*PLAIN, *tracing(url, ()))
    with (
        launch(Settings(models=("live",), repository=tmp_path, arguments=arguments, discard_traces=True)) as server,
        loaded(server.grpc_url),
    ):
        counted(server.grpc_url, "live", executions=2)
        assert main(["live", "--live", server.http_url, "--seconds", "1", "--format", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert f"sends its traces to {url}" in output["not_known"]
    assert output["counted"]["executions"] > 0


def test_traces_that_a_user_sets_stay_as_they_are(tmp_path: Path) -> None:
    ours = (f"--trace-config=triton,file={tmp_path}/trace.json", "--trace-config=level=OFF")
    assert with_traces(["--log-verbose=1"], tmp_path) == ("--log-verbose=1", *ours)
    for theirs in (["--trace-config=rate=1"], ["--trace-file", "x"]):
        assert with_traces(theirs, tmp_path) == tuple(theirs)
    assert not Settings(models=("live",)).traceable
