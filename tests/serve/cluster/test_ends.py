"""Clusters that fail, scale by themselves, and end: each is a cluster of its own with one or two servers."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_load import Load
from cluster_program import PLAN, Cluster
from processes import wait_until
from serving_program import end, printed, program

from export.repository import REPOSITORY

pytestmark = pytest.mark.server
OWN = """
host = "127.0.0.2"
repository = "models"
[[deployment]]
name = "own"
models = ["identity"]
arguments = ["--disable-auto-complete-config"]
replicas = 1
"""
CONFIG = """
name: "identity" backend: "python" max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def own_model(folder: Path) -> None:
    """A repository with the model and its variants."""
    model = folder / "models" / "identity"
    for path, text in {
        "1/model.py": "class TritonPythonModel:\n    def execute(self, requests): return []\n",
        "config.pbtxt": CONFIG,
        # The server from pip has no backend for it.
        "1/model.pt": "",
        "configs/broken.pbtxt": CONFIG.replace('backend: "python"', 'platform: "pytorch_libtorch"'),
    }.items():
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text(text)


@contextlib.contextmanager
def ended(cluster: Cluster) -> Iterator[Cluster]:
    """End the cluster at the end, whatever happens, and forget its state."""
    try:
        yield cluster
    finally:
        cluster.end(signal.SIGTERM)
        cluster.do("down")


def test_update_that_fails_goes_back_and_a_cluster_without_replicas_continues(tmp_path: Path) -> None:
    own_model(tmp_path)
    with ended(Cluster(tmp_path / "plan.toml", OWN)) as cluster:
        cluster.up()
        served = cluster.ready()
        port = cluster.status().metrics_port
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))  # the metrics ask for no token
        done = cluster.tell("update", "own", "--config-name", "broken")
        assert done.returncode == 1
        assert "the update went back to config.pbtxt, because broken failed: " in done.stderr
        assert "no pytorch backend" in done.stderr
        cluster.wait_for(cluster.has(1))
        assert cluster.ready()[0].name == served[0].name
        assert "own has 0 replicas; its requests fail" in cluster.do("scale", "identity", "0")
        assert cluster.end(signal.SIGINT) == 130
        cluster.begin()
        assert wait_until(lambda: "python -m serve.cluster scale own 1" in cluster.printed(), seconds=60)
        assert "\nopen, but not ready: HTTP 127.0.0.2:" in cluster.printed()


def test_scales_by_itself_without_second_tries(tmp_path: Path) -> None:
    """The door sends no request twice here, so a replica that stopped too early would fail some."""
    scaling = "[deployment.scaling]\nmax = 2\ntarget_pending = 2\ndown_after_s = 2\n"
    plan = f"{PLAN.format(replicas=1)}idempotent = false\n{scaling}"
    with ended(Cluster(tmp_path / "plan.toml", plan)) as cluster:
        cluster.up()
        assert "scales by itself" in cluster.tell("scale", "accelerator", "2").stderr
        status = cluster.status()
        with Load(status.http_port, status.grpc_port, clients=8) as load:
            cluster.wait_for(cluster.has(2))
            load.wait_for(100)
        with Load(status.http_port, status.grpc_port, clients=1) as few:
            cluster.wait_for(cluster.has(1))
            few.wait_for(20)
        load.assert_clean()
        few.assert_clean()
        assert "accelerator: scales 1 -> 2 replicas" in cluster.printed()
        assert "accelerator: scales 2 -> 1 replicas" in cluster.printed()


def test_serve_keeps_replicas_behind_one_address(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    arguments = ["--model=simulated_accelerator", "--config-name=dynamic", "--replicas=2"]
    serving = program(REPOSITORY, output, *arguments)
    try:
        assert printed(output, "ready: HTTP")
        ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", output.read_text())]
        with Load(ports[0], ports[1]) as load:
            load.wait_for(50)
        load.assert_clean()
        assert output.read_text().count(": ready after") == 2
    finally:
        end(serving)
