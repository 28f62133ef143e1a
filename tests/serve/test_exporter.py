"""The metrics of every model's batches: exact counts of a real server, over reloads, and when something is missing.

The server is one of its own, because the last test ends it under the exporter.
"""

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import NoneType

import numpy as np
import pytest
import tritonclient.grpc as triton
from bench import Bench
from policy_models import stand_in
from processes import wait_until
from scrapes import buckets, scrape, text, value
from sleepers import PLAIN
from streams import Stream
from tiny_models import lookup

from serve.bounded_http import MOST_AT_A_TIME
from serve.exporter.__main__ import main
from serve.exporter.own_metrics import OwnMetrics
from serve.exporter.rows import SIZES
from serve.launcher import Server
from serve.management import api, traces
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
ROWS = [4, 2, 2, 6, 2]
EXECUTED = "triton_batching_execution_rows"


@dataclass(frozen=True, kw_only=True)
class Exporting:
    """A bench whose batchers wait for eight requests once, its server, and the address of its exporter."""

    bench: Bench
    server: Server
    metrics_url: str
    sidecar: "subprocess.Popen[str]"

    @property
    def grpc_url(self) -> str:
        return self.server.grpc_url

    @property
    def http_url(self) -> str:
        return self.server.http_url


def send(url: str, model: str, sizes: list[int]) -> None:
    """One request of each size, all in flight together; each must be answered."""
    with triton.InferenceServerClient(url) as client, ThreadPoolExecutor(len(sizes)) as pool:

        def ask(rows: int) -> int:
            tensor = triton.InferInput("x", [rows, 4], "FP32")
            tensor.set_data_from_numpy(np.ones((rows, 4), dtype=np.float32))
            return len(client.infer(model, [tensor]).as_numpy("y"))

        assert list(pool.map(ask, sizes)) == sizes


def ensemble(repository: Path, name: str, step: str) -> str:
    """A model that passes its requests on to `step`."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: 64\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f'ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1\n'
        'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }\n'
    )
    return name


def counted(server: Exporting, model: str, requests: int) -> None:
    """Wait until the server has counted all requests: it answers first."""
    assert wait_until(lambda: Counters.read(server.grpc_url, model).requests == requests, seconds=10)


@pytest.fixture(scope="module")
def exporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporting]:
    folder = tmp_path_factory.mktemp("exported")
    repository = folder / "repository"
    names = [stand_in(repository, name) for name in ("batched", "reloaded", "program", "step")]
    names.append(ensemble(repository, "passing", "step"))
    names.append(lookup(repository).name)
    names.append(stand_in(repository, "policied", batch_policy="aimd", slo_ms="1000"))
    bench = Bench(folder=folder, held=8, arguments=(*PLAIN, *traces.arguments(folder / "trace", 1)))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(bench.serving(names, repository))
        arguments = ["--url", server.http_url, "--metrics", server.metrics_url, "--port", "0"]
        command = [sys.executable, "-m", "serve.exporter", *arguments]
        sidecar = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        stack.callback(sidecar.kill)
        assert sidecar.stdout is not None
        line = next(text for text in sidecar.stdout if "/metrics" in text)
        url = line.partition("http://")[2].partition("/metrics")[0]
        yield Exporting(bench=bench, server=server, metrics_url=url, sidecar=sidecar)
    bench.close()


def test_the_page_has_the_batches_of_a_model(exporting: Exporting) -> None:
    before = scrape(exporting.metrics_url)
    assert value(before, f"{EXECUTED}_count", model="batched") == 0
    sizes = [3, 5, 9, 1, 1, 1, 20, 24]  # 64 rows, the most that one execution may have
    send(exporting.grpc_url, "batched", sizes)
    send(exporting.grpc_url, "batched", [1])
    send(exporting.grpc_url, "batched", [3])
    counted(exporting, "batched", 10)
    page = scrape(exporting.metrics_url)
    expected = {size: sum(rows <= size for rows in (64, 1, 3)) for size in (*SIZES, float("inf"))}
    assert buckets(page, EXECUTED, "batched") == expected
    assert value(page, f"{EXECUTED}_count", model="batched") == 3
    assert value(page, f"{EXECUTED}_sum", model="batched") == 68
    assert (
        value(scrape(exporting.metrics_url), f"{EXECUTED}_sum", model="batched") == 68
    )  # a second reader changes nothing
    assert value(page, "triton_batching_max_batch_size", model="batched") == 64
    assert value(page, "triton_batching_instances", model="batched") == 1
    statistics = Counters.read(exporting.grpc_url, "batched")
    for name, nanoseconds in (("queue", statistics.queue_ns), ("compute", statistics.compute_ns)):
        assert value(page, f"triton_batching_request_{name}_seconds_count", model="batched") == 10
        seconds = value(page, f"triton_batching_request_{name}_seconds_sum", model="batched")
        assert seconds == pytest.approx(nanoseconds / 1e9)
    busy = value(page, "triton_batching_execution_seconds_total", model="batched")
    assert busy == pytest.approx(statistics.busy_ns / 1e9)
    assert busy >= 0.08  # three executions of 20 ms and half a ms for each of 68 rows
    # Triton's own metrics are there too, and the programs that read them find what they did before.
    assert value(page, "nv_inference_count", model="batched") == 68
    assert value(page, "triton_batching_up") == 1
    metrics = Metrics.read(exporting.metrics_url)
    assert metrics.pending["batched"] == 0
    assert "queue_limit_refused" not in metrics.totals["batched"]
    assert not any("triton_batching" in name for name in (*metrics.totals["batched"], *metrics.gauges["batched"]))


def test_a_policys_own_batches_are_counted_and_not_those_of_tritons_batcher(exporting: Exporting) -> None:
    sizes = [1, 2, 3, 4, 5, 6, 7, 8]
    send(exporting.grpc_url, "policied", sizes)
    counted(exporting, "policied", len(sizes))
    page = scrape(exporting.metrics_url)
    instance = {"model": "policied", "instance": "policied_0_0"}
    executions = value(page, "batch_policy_rows_count", **instance)
    assert value(page, f"{EXECUTED}_sum", model="policied") == sum(sizes)
    assert value(page, f"{EXECUTED}_count", model="policied") == executions
    by_policy = {
        float(2**power): value(page, "batch_policy_rows_bucket", le=str(2**power), **instance) for power in range(7)
    }
    assert {size: count for size, count in buckets(page, EXECUTED, "policied").items() if size <= 64} == by_policy
    assert ("triton_batching_execution_seconds_total", frozenset({("model", "policied"), ("version", "1")})) not in page


def test_requests_that_are_answered_with_an_error_are_counted(exporting: Exporting) -> None:
    """Triton counts them as successful (server#8521)."""
    with Stream(exporting.grpc_url) as stream:
        answers = stream.send("lookup", [{"x": np.full((1, 1), value, np.float32)} for value in [0, 99, 1, 2] * 2])
    assert [isinstance(answer, str) for answer in answers] == [False, True, False, False] * 2

    def failed() -> float:
        return value(scrape(exporting.metrics_url), "triton_batching_failed_requests_total", model="lookup")

    assert wait_until(lambda: failed() == 2, seconds=20)
    assert value(scrape(exporting.metrics_url), "nv_inference_request_success", model="lookup") == 8


def test_an_ensemble_has_requests_and_its_step_has_the_executions(exporting: Exporting) -> None:
    send(exporting.grpc_url, "passing", [2] * 8)
    counted(exporting, "passing", 8)
    page = scrape(exporting.metrics_url)
    assert value(page, f"{EXECUTED}_sum", model="step") == 16
    assert value(page, f"{EXECUTED}_count", model="step") == 1
    assert value(page, "triton_batching_request_queue_seconds_count", model="passing") == 8
    executed = {name for name, labels in page if ("model", "passing") in labels and name.startswith("triton_batching")}
    assert not any("execution" in name or "instances" in name for name in executed)


def test_totals_do_not_fall_when_a_model_is_loaded_again(exporting: Exporting) -> None:
    send(exporting.grpc_url, "reloaded", [2] * 8)
    counted(exporting, "reloaded", 8)
    before = scrape(exporting.metrics_url)
    for verb in ("unload", "load"):
        api.call(exporting.http_url, f"repository/models/reloaded/{verb}", {}, expected=NoneType, timeout_s=30)
        if verb == "unload":
            assert f'{EXECUTED}_count{{model="reloaded"' not in text(exporting.metrics_url)
    assert Counters.read(exporting.grpc_url, "reloaded").requests == 0  # Triton itself counts from 0
    between = scrape(exporting.metrics_url)
    send(exporting.grpc_url, "reloaded", [4] * 8)
    counted(exporting, "reloaded", 8)
    after = scrape(exporting.metrics_url)
    for name, total in (("sum", 48), ("count", 2)):
        sample = f"{EXECUTED}_{name}"
        assert value(after, sample, model="reloaded") == total
        assert value(between, sample, model="reloaded") == value(before, sample, model="reloaded")
    assert [
        value(page, "triton_batching_model_restarts_total", model="reloaded") for page in (before, between, after)
    ] == [
        0,
        1,
        1,
    ]


def test_idle_connections_do_not_stop_serving_and_end(exporting: Exporting) -> None:
    """Connections that send nothing take every place; requests to the server go on, and the places come back."""
    host, port = exporting.metrics_url.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(MOST_AT_A_TIME)]
    try:
        with pytest.raises(OSError, match=r"."):
            text(exporting.metrics_url)
        send(exporting.grpc_url, "program", [1] * 8)
    finally:
        for connection in idle:
            connection.close()
    assert wait_until(lambda: _answers(exporting.metrics_url), seconds=20)


def _answers(url: str) -> bool:
    try:
        return "triton_batching_up 1.0" in text(url)
    except OSError:
        return False


def test_a_port_in_use_is_a_mistake(exporting: Exporting, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", exporting.metrics_url.partition(":")[2]]) == 2
    printed = capsys.readouterr().err
    assert "cannot be used" in printed
    assert len(printed.strip().splitlines()) == 1


def test_counters_of_instances_are_added_up_and_never_fall() -> None:
    """Two instances; the first begins again from 0, and then the second is gone."""

    def page(*values: int) -> str:
        line = 'queue_limit_refused_total{{instance="{}",model="m",version="1"}} {}\n'
        counters = itertools.starmap(line.format, enumerate(values))
        return "# TYPE queue_limit_refused_total counter\nnv_inference_count 7\n" + "".join(counters)

    own, totals = OwnMetrics(), list[float]()
    for reading in (page(5, 2), page(1, 2), page(4), "", page(4, 2)):
        own.update(reading)
        totals.append(own.refused()["m", "1"])
    assert totals == [7, 8, 11, 11, 11]
    assert own.batches() == {}
    # What a model.py blames on its client is no failure of the model.
    for blame, count in (("model", 2), ("request", 7)):
        own.update(f'batch_hooks_failed_requests{{blame="{blame}",model="m",version="1"}} {count}\n')
    assert own.failed() == {("m", "1"): 2}


def test_it_follows_a_server_that_ends_and_that_writes_its_last_traces(exporting: Exporting) -> None:
    folder = exporting.bench.folder
    exporting.bench.close()
    with pytest.raises(OSError, match="503"):
        text(exporting.metrics_url)  # so Prometheus sees that the replica is down
    exporting.sidecar.send_signal(signal.SIGTERM)
    assert exporting.sidecar.wait(20) == 0
    # The last ones were too few for a file while the server ran.
    assert {"batched", "policied", "reloaded"} <= {trace.model for trace in traces.read(folder / "trace")}
