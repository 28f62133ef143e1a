"""The front door of docker/kubernetes as a real Envoy in front of a real server: only the addresses are changed."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import manifests
import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml
from bench import Bench
from manifests import FOLDER
from processes import wait_until
from tritonclient.utils import InferenceServerException

from perf.scale.objects import query
from serve.exporter.__main__ import PORT
from serve.launcher import Server
from serve.resources import free_ports
from tests.docker.test_files import ROOT

MODEL = "text_recognition"
DEADLINE_S = 30.0
# Connections end after this time here, so that some do under a short load.
LIFE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Door:
    """The ports of a running front door."""

    http: int
    grpc: int
    stats: int

    def status(self, path: str, port: int, body: bytes | None = None) -> int:
        """The status of a request over HTTP."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=body, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def counter(self, name: str) -> int:
        """The sum of a counter over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.stats}/stats/prometheus", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def here(config: Any, server: Server, door: Door, folder: Path) -> Any:
    """The configuration with addresses of this machine in place of those of the cluster."""
    text = json.dumps(config)
    ports = {8000: door.http, 8001: door.grpc, 9901: door.stats}
    for old, new in ports.items():
        text = text.replace(f'"0.0.0.0", "port_value": {old}', f'"127.0.0.1", "port_value": {new}')
    for old, new in {8000: server.http_port, 8001: server.grpc_port}.items():
        text = text.replace(f'"triton-replicas", "port_value": {old}', f'"localhost", "port_value": {new}')
    assert text.count('"127.0.0.1", "port_value"') == len(ports)
    assert text.count('"localhost", "port_value"') == 2
    life = '"max_connection_duration": "20s"'
    assert life in text
    return json.loads(text.replace(life, life.replace("20", str(LIFE_S))).replace("/tmp/", f"{folder}/"))


@pytest.fixture(scope="module")
def server(bench: Bench) -> Iterator[Server]:
    with bench.serving((MODEL,), config_name="dynamic") as running:
        yield running


@pytest.fixture(scope="module")
def door(server: Server) -> Iterator[Door]:
    envoy = Path(sys.executable).with_name("envoy")
    config = yaml.safe_load((FOLDER / "base" / "envoy.yaml").read_text())
    http, grpc, stats = free_ports("127.0.0.1", 0, 0, 0)
    running = Door(http=http, grpc=grpc, stats=stats)
    folder = Path(tempfile.mkdtemp(prefix="door-", dir="/tmp"))  # short, for the socket in it
    file = folder / "envoy.yaml"
    file.write_text(json.dumps(here(config, server, running, folder)))
    command = [envoy, "--config-path", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
    process = subprocess.Popen([str(word) for word in command])
    try:
        assert wait_until(lambda: answers(running, "/v2/health/ready", http), seconds=DEADLINE_S)
        yield running
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE_S)
        shutil.rmtree(folder)


def answers(door: Door, path: str, port: int) -> bool:
    """Whether a request is answered with 200."""
    try:
        return door.status(path, port) == 200
    except OSError:
        return False


def rows(count: int) -> triton.InferInput:
    tensor = triton.InferInput("input.1", [count, 1, 32, 100], "FP32")
    tensor.set_data_from_numpy(np.zeros((count, 1, 32, 100), np.float32))
    return tensor


@pytest.mark.server
def test_both_ports_answer_and_nothing_else_is_routed(door: Door, server: Server) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{door.grpc}")
    assert client.infer(MODEL, [rows(2)]).as_numpy("308").shape == (2, 26, 37)
    with pytest.raises(InferenceServerException):
        client.get_model_repository_index()
    tensor = {"name": "input.1", "datatype": "FP32", "shape": [1, 1, 32, 100], "data": [0.0] * 3200}
    body = json.dumps({"inputs": [tensor]}).encode()
    assert door.status(f"/v2/models/{MODEL}/infer", door.http, body) == 200
    deep = b"[" * 100_000 + b"]" * 100_000
    assert door.status(f"/v2/models/{MODEL}/infer", door.http, b'{"inputs": [{"data": ' + deep + b"}]}") == 400
    assert door.status("/v2/repository/index", door.http, b"{}") == 404
    assert door.status("/v2/models/ranker/infer", door.http, b"{}") == 404
    assert server.running()


@pytest.mark.server
def test_probes_and_prometheus_reach_two_paths_of_the_admin_socket(door: Door) -> None:
    assert door.status("/ready", door.stats) == 200
    assert door.counter("envoy_cluster_upstream_rq_total") > 0
    assert [door.status(path, door.stats) for path in ("/config_dump", "/server_info", "/")] == [404] * 3
    assert door.status("/quitquitquit", door.stats, b"") == 404


@pytest.mark.server
def test_connections_end_after_their_time_and_no_request_with_them(door: Door) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{door.grpc}")
    ended = "envoy_http_downstream_cx_max_duration_reached"
    before = door.counter(ended)

    def asked() -> bool:
        assert client.infer(MODEL, [rows(1)]).as_numpy("308").shape == (1, 26, 37)
        return door.counter(ended) - before >= 2

    assert wait_until(asked, seconds=60)


@pytest.mark.server
def test_the_sidecar_of_the_gpu_overlay_adds_batch_sizes_to_the_metrics(door: Door, server: Server) -> None:
    replicas, _ = manifests.server("gpu")
    (sidecar,) = [container for container in replicas.spec["containers"] if container["name"] == "exporter"]
    assert replicas.ports()["metrics"] == PORT
    port, *_ = free_ports("127.0.0.1", 0, 0, 0)
    addresses = {"127.0.0.1:8000": server.http_url, "127.0.0.1:8002": server.metrics_url, "0.0.0.0": "127.0.0.1"}
    options = [addresses.get(word, word) for word in sidecar["command"][1:]]
    assert set(addresses.values()) <= set(options)
    exporter = subprocess.Popen([sys.executable, *options, "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: answers(door, "/metrics", port), seconds=DEADLINE_S)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            metrics = page.read().decode()
    finally:
        exporter.terminate()
        exporter.wait(timeout=DEADLINE_S)
    assert f'triton_batching_execution_rows_count{{model="{MODEL}",version="1"}}' in metrics
    assert f'nv_inference_request_success{{model="{MODEL}",version="1"}}' in metrics


@pytest.mark.server
def test_the_signal_of_the_autoscalers_is_a_metric_of_the_server(server: Server) -> None:
    rule = query(MODEL, target_pending=8, steepness=1)
    names = set(re.findall(r"nv_\w+", rule))
    with urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert len(names) == 4
    assert all(f'{name}{{model="{MODEL}",version="1"}}' in metrics for name in names)
