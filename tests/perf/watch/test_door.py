"""What a watch and the load generator make of the door of a cluster."""

from pathlib import Path

import pytest
from cluster_program import PLAN, Cluster

from perf.load import door
from perf.watch.__main__ import main

pytestmark = pytest.mark.server


def test_the_door_of_a_cluster_stands_for_its_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(tmp_path / "plan.toml", PLAN.format(replicas=2))
    cluster.up()
    try:
        url = f"localhost:{cluster.status().grpc_port}"
        replicas = cluster.ready()
        assert main(["--url", url, "--metrics", f"127.0.0.1:{replicas[0].metrics_port}", "--seconds", "1"]) == 0
        printed = capsys.readouterr().out
        reason = door.several(url, "simulated_accelerator")
        assert door.replicas(url, "ranker") == door.replicas("localhost:1") == []
    finally:
        cluster.do("down")
        assert cluster.ended() == 0
    for replica in replicas:
        address = f"127.0.0.1:{replica.grpc_port}"
        assert any(line.startswith(address) and "no answer" not in line for line in printed.splitlines())
        assert address in reason
