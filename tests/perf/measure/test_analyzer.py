"""perf_analyzer's output read back, also when it gives no summary, and one run against a real server."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from bench import Bench
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.measure import analyzer
from perf.measure.analyzer import AnalyzerError, Endpoint, measure, parse, write_samples
from perf.records.measurement import AnalyzerLoad, AnalyzerResult, AnalyzerWindow
from serve.launcher import Server
from serve.management.statistics import Counters

# As perf_analyzer 2.45 printed them.
OUTPUT = """
Request concurrency: 16
  Pass [1] throughput: 307.701 infer/sec. p95 latency: 101196 usec
  Pass [2] throughput: 319.643 infer/sec. p95 latency: 99880 usec
  Pass [3] throughput: 319.393 infer/sec. p95 latency: 102279 usec
  Client:
    Request count: 569
    Throughput: 315.578 infer/sec
    p50 latency: 99423 usec
"""
TABLE = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,"
    "request/response,response wait\n"
    "16,315.578,72,659,74054,60,24528,252,1,99423,101213,101987,116671,73,99544\n"
)


def test_summary_and_windows() -> None:
    measured = parse(OUTPUT, TABLE, 700)
    assert measured == AnalyzerResult(
        window_ms=700,
        windows=(
            AnalyzerWindow(throughput_rows_per_s=307.701, latency_us=101196),
            AnalyzerWindow(throughput_rows_per_s=319.643, latency_us=99880),
            AnalyzerWindow(throughput_rows_per_s=319.393, latency_us=102279),
        ),
        throughput_rows_per_s=315.578,
        requests=569,
        mean_us=73 + 99544,
        p50_us=99423,
        p90_us=101213,
        p95_us=101987,
        p99_us=116671,
        client_send_us=72,
        network_us=659,
        client_receive_us=1,
    )


def test_without_a_summary_the_windows_are_kept() -> None:
    """With no stable window perf_analyzer prints nothing but its passes, and ends with code 2."""
    measured = parse(OUTPUT.split("  Client:")[0], "", 700)
    assert measured is not None
    assert measured.throughput_rows_per_s == 319.393
    assert len(measured.windows) == 3
    assert measured.mean_us is None
    assert measured.requests is None


CONFIG = text_format.Parse(
    """
    max_batch_size: 4
    input { name: "a" data_type: TYPE_FP32 dims: [ 2, 3 ] }
    input { name: "b" data_type: TYPE_INT64 dims: [ -1 ] }
    input { name: "c" data_type: TYPE_STRING dims: [ 1 ] }
    """,
    ModelConfig(),
)


def test_samples_are_one_entry_per_row(tmp_path: Path) -> None:
    text = write_samples(CONFIG, tmp_path / "samples.json").read_text()
    entries = json.loads(text)["data"]
    assert len(entries) == analyzer.SAMPLES
    for entry in entries:
        assert entry["a"]["shape"] == [2, 3]
        assert all(isinstance(value, float) for value in entry["a"]["content"])
        assert len(entry["a"]["content"]) == 6
        assert all(isinstance(value, int) for value in entry["b"]["content"])
        assert entry["b"]["shape"] == [len(entry["b"]["content"])]
        assert isinstance(entry["c"]["content"][0], str)
    assert write_samples(CONFIG, tmp_path / "again.json").read_text() == text


def target(server: Server, model: str) -> Endpoint:
    return Endpoint(model=model, config=server.configs[model], http_url=server.http_url, grpc_url=server.grpc_url)


@pytest.mark.server
@pytest.mark.parametrize(
    "load",
    [
        AnalyzerLoad(concurrency=4, request_rows=2),
        AnalyzerLoad(concurrency=4, request_rows=2, protocol="grpc", data="random"),
        AnalyzerLoad(concurrency=2, shared_memory=True, data="zero", shapes=(("input.1", (1, 32, 100)),)),
    ],
)
def test_a_real_measurement_agrees_with_the_server(server: Server, load: AnalyzerLoad) -> None:
    model = "simulated_accelerator"
    before = Counters.read(server.grpc_url, model)
    measured, command = measure(target(server, model), load, window_ms=400)
    counted = Counters.read(server.grpc_url, model) - before
    assert len(measured.windows) == 3
    assert measured.requests is not None
    assert measured.mean_us is not None
    # Every measured request was the server's; it also served those before the first and after the last window.
    assert measured.requests <= counted.requests
    assert counted.rows == counted.requests * load.request_rows
    # An execution cannot be shorter than 20 ms, nor a request than its execution.
    assert measured.mean_us > 20_000
    assert measured.p50_us is not None
    assert measured.p99_us is not None
    assert measured.p50_us <= measured.p99_us
    assert command[0] == "perf_analyzer"
    assert not any("/tmp" in part for part in command)


@pytest.mark.server
def test_windows_shorter_than_a_request_are_made_longer(bench: Bench, tmp_path: Path) -> None:
    """With windows in which nothing ends perf_analyzer gives up after one and reports several times the truth."""
    folder = tmp_path / "slow_accelerator"
    shutil.copytree(
        REPOSITORY / "simulated_accelerator", folder, ignore=shutil.ignore_patterns("__pycache__", "configs")
    )
    path = folder / "config.pbtxt"
    path.write_text(path.read_text().replace('"20"', '"150"').replace("simulated_accelerator", folder.name))
    with bench.serving((folder.name,), tmp_path) as slow:
        measured, _ = measure(target(slow, folder.name), AnalyzerLoad(concurrency=1), window_ms=100)
    assert measured.window_ms > 100
    assert len(measured.windows) == 3
    assert measured.throughput_rows_per_s < 1 / 0.15


@pytest.mark.server
def test_an_error_quotes_perf_analyzer(server: Server) -> None:
    wrong = dataclasses.replace(target(server, "ranker"), model="nowhere")
    with pytest.raises(AnalyzerError, match=r"measured nothing for 'nowhere'.*\n.*"):
        measure(wrong, AnalyzerLoad(concurrency=1), window_ms=200)
