"""Watching a real server: every request that was sent is counted, over a reload, an end and a new start."""

import socket

import numpy as np
import pytest
import tritonclient.grpc as triton
from processes import wait_until

from clients import Model
from clients.errors import ServerUnreachableError
from perf.watch.__main__ import main
from perf.watch.history import History
from perf.watch.reading import Source
from serve.launcher import Server, Settings, launch
from serve.management import admin
from serve.server_flags import LATENCIES

pytestmark = pytest.mark.server
MODEL = "simulated_accelerator"


def settings() -> Settings:
    """On ports that are free, for two servers in turn."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    http, grpc, metrics = (int(listener.getsockname()[1]) for listener in sockets)
    for listener in sockets:
        listener.close()
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    return Settings(models=(MODEL,), arguments=LATENCIES, **ports)  # type: ignore[arg-type]


def send(server: Server, *rows: int) -> None:
    """One after the other, so that each is an execution."""
    with Model(MODEL, url=server.grpc_url, transport="grpc") as model:
        for count in rows:
            model.predict(np.zeros((count, 1, 32, 100), np.float32))


def look(source: Source, history: History, requests: int) -> None:
    """Read until so many requests are counted since the watch began: Triton answers first and counts then."""

    def counted() -> bool:
        history.add(source.read())
        total = history.tracks[MODEL].total
        return total is not None and total.counted.requests == requests

    assert wait_until(counted, seconds=60)


def total(history: History) -> list[int]:
    """Requests, rows and executions since the watch began."""
    sample = history.tracks[MODEL].total
    assert sample is not None
    return [sample.counted.requests, sample.counted.rows, sample.counted.executions]


def test_every_request_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Two servers of its own, since the first one ends and the next one begins at its address."""
    asked, history = settings(), History()
    grpc, metrics = f"127.0.0.1:{asked.grpc_port}", f"127.0.0.1:{asked.metrics_port}"
    source = Source(grpc, metrics)
    with launch(asked) as server:
        send(server, 5)  # before the watch, so not in it
        source.check()
        assert wait_until(lambda: source.read().counters[(MODEL, "1")].requests == 1, seconds=60)
        history.add(source.read())
        send(server, 1, 1, 3)
        look(source, history, 3)
        assert total(history) == [3, 5, 3]
        sample = history.tracks[MODEL].total
        assert sample is not None
        assert dict(sample.counted.batches) == {1: 2, 3: 1}
        # 20 ms + 0.5 ms a row, by the statistics and by the summary of the metrics endpoint.
        assert sample.compute_ms >= 20.5
        assert sample.quantiles_us[0.5] >= 20_500
        assert {process.owner for process in source.read().processes} == {"tritonserver", MODEL}
        with triton.InferenceServerClient(server.grpc_url) as client:
            client.unload_model(MODEL, headers=admin.headers(server.grpc_url))
            assert wait_until(lambda: not source.read().counters, seconds=60)
            history.add(source.read())
            assert not history.tracks[MODEL].loaded
            client.load_model(MODEL, headers=admin.headers(server.grpc_url))
        send(server, 2)
        look(source, history, 4)
        assert total(history) == [4, 7, 4]
        arguments = ["--url", server.grpc_url, "--metrics", metrics, "--seconds", "1"]
        assert main(arguments) == 0
        assert MODEL in capsys.readouterr().out
        assert main([*arguments, "--model", "nobody"]) == 2
        assert "'nobody' is not loaded there. Loaded: simulated_accelerator." in capsys.readouterr().err
    with pytest.raises(ServerUnreachableError):
        source.read()
    history.miss(source.now_s)
    assert history.down_since_s == history.now_s
    with launch(asked) as server:
        send(server, 4, 4)
        look(source, history, 6)
        assert total(history) == [6, 15, 6]
        assert history.down_since_s is None
        # The 24.10 server has no sign of a load but its counters.
        assert [each.text for each in history.marks] == [
            *(f"{MODEL} was unloaded", f"{MODEL} was loaded", "the server does not answer"),
            f"the server was started again (process {source.read().server_pid})",
        ]
    source.close()
