"""`perf.why --live` on a server that sends its traces to a collector: why takes the collector's place for that time."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sleepers import PLAIN, sleeper
from streams import counted

from clients.async_connection import Connection, connect
from perf.why.__main__ import main
from serve.launcher import Settings, launch
from serve.management import traces
from serve.management.trace_receiver import receiving
from serve.resources import loopback_port
from serve.server_flags import tracing

pytestmark = pytest.mark.server
FIXED = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] max_batch_size: 4 dynamic_batching { }'
# Three full batches: whatever the batcher does, full batches wait. Few requests, because tracing can end a server.
CLIENTS, EXECUTION_MS = 12, 200


@contextmanager
def loaded(grpc_url: str, *, rows: int) -> Iterator[None]:
    """Clients that wait for each answer."""
    over = threading.Event()

    async def client(connection: Connection) -> None:
        while not over.is_set():
            await connection.infer("live", {"X": np.zeros((rows, 1), np.int32)})

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


def test_spans_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sleeper(tmp_path, "live", FIXED, fixed_ms=EXECUTION_MS, row_ms=0)
    url = f"http://127.0.0.1:{loopback_port(())}/v1/traces"
    settings = Settings(
        models=("live",), repository=tmp_path, arguments=(*PLAIN, *tracing(url, ())), discard_traces=True
    )
    with launch(settings) as server:
        before = traces.settings(server.http_url, "live")
        arguments = ["live", "--live", server.http_url, "--seconds", "1", "--format", "json"]
        with loaded(server.grpc_url, rows=1):
            counted(server.grpc_url, "live", executions=2)
            assert main(arguments) == 0
            output = json.loads(capsys.readouterr().out)
        with loaded(server.grpc_url, rows=2):
            assert main([argument for argument in arguments if argument not in ("--format", "json")]) == 0
            several = capsys.readouterr().out
        with receiving(url):  # a collector of the user's
            with loaded(server.grpc_url, rows=1):
                assert main(arguments) == 0
            taken = json.loads(capsys.readouterr().out)
        assert traces.settings(server.http_url, "live") == before
    assert "not_known" not in output, output["not_known"]
    assert 10 <= output["replayed"] <= output["counted"]["requests"] + CLIENTS
    assert output["now"]["rows_per_execution"] == pytest.approx(output["counted"]["rows_per_execution"], rel=0.25)
    assert "hold no rows and shapes" in several
    assert "cannot be used" in taken["not_known"]
