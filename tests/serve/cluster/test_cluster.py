"""Two real replicas behind the real front door, under a steady load of which every answer is checked.

The replicas are servers of their own because they are killed, drained and replaced: eight starts for all tests.
"""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator

import msgspec
import pytest
from cluster_load import Load
from cluster_program import PLAN, Cluster, Remains, server
from processes import wait_until

from serve.cluster import place
from serve.cluster.status import Status

pytestmark = pytest.mark.server
REQUESTS = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster") / "plan.toml", PLAN.format(replicas=2))
    running.up()
    yield running
    if running.is_running():
        running.end()
    running.do("down")


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    """It has asked for a while before, and all its answers are right at the end."""
    status = cluster.status()
    with Load(status.http_port, status.grpc_port) as running:
        running.wait_for(REQUESTS)
        yield running
        running.wait_for(REQUESTS)
    running.assert_clean()


def test_killed_replica_is_replaced_and_no_request_fails(cluster: Cluster, load: Load) -> None:
    killed = cluster.ready()[0]
    assert killed.server_pid == server(killed)
    [row] = [line for line in cluster.do("status").splitlines() if f" {killed.name} " in line]
    assert f" {killed.server_pid} " in row
    os.kill(killed.server_pid, signal.SIGKILL)
    cluster.wait_for(lambda status: status.deployments[0].deaths == 1 and cluster.has(2)(status))
    assert load.answered
    assert killed.name not in {replica.name for replica in cluster.ready()}
    assert f"{killed.name}: died: tritonserver was killed by SIGKILL" in cluster.printed()


def test_drained_replica_answers_its_requests_and_is_replaced(cluster: Cluster, load: Load) -> None:
    drained = cluster.ready()[0].name
    assert f"{drained} has answered its requests and stopped" in cluster.do("drain", drained)
    cluster.wait_for(cluster.has(2))
    load.wait_for(REQUESTS)
    replicas = cluster.ready()
    assert drained not in {replica.name for replica in replicas}
    assert all(replica.requests for replica in replicas)
    assert f"{drained}: has answered all its requests" in cluster.printed()


def test_canary_stands_beside_its_control_and_is_promoted(cluster: Cluster, load: Load) -> None:
    before = {replica.name for replica in cluster.ready()}
    begin = ("canary", "simulated_accelerator", "--config-name", "baseline", "--percent", "25")
    assert "get 25.0% of the requests each." in cluster.do(*begin)
    # The cluster asks the door for its counts twice a second.
    cluster.wait_for(lambda status: all(replica.requests > 0 for replica in status.replicas))
    first = {replica.name: replica.requests for replica in cluster.ready()}
    load.wait_for(6 * REQUESTS)
    status = msgspec.json.decode(cluster.do("status", "--json"), type=Status)
    sent = {replica.name: replica.requests - first[replica.name] for replica in status.replicas}
    pair = {replica.role: replica for replica in status.replicas if replica.role}
    for role, config_name in (("canary", "baseline"), ("control", "dynamic")):
        assert pair[role].config_name == config_name
        # Envoy sends requests in turn by weight.
        assert sent[pair[role].name] / sum(sent.values()) == pytest.approx(0.25, abs=0.05), sent
        [served] = pair[role].served
        assert (served.requests > 0, served.failures, served.rows_per_execution >= 1) == (True, 0, True)
        assert 0 < served.queue_ms < served.queue_ms + served.compute_ms
    shown = cluster.do("status")
    assert re.search(rf"canary {pair['canary'].name}\W+control {pair['control'].name}\W", shown), shown
    assert "update done: 2 replicas with baseline" in cluster.do("promote", "accelerator")
    cluster.wait_for(cluster.has(2))
    replicas = {replica.name: replica.config_name for replica in cluster.ready()}
    assert set(replicas.values()) == {"baseline"}
    assert pair["canary"].name in replicas
    assert not before & replicas.keys()


def test_stopped_replica_is_left_out_until_it_goes_on(cluster: Cluster, load: Load) -> None:
    stopped, other = cluster.ready()
    os.kill(server(stopped), signal.SIGSTOP)
    try:
        is_told = f"{stopped.name}: has not said for 3 s that it is ready; after 30 s (hung_s)"
        assert wait_until(lambda: is_told in cluster.printed(), seconds=25)
        load.wait_for(REQUESTS)
        phases = {replica.name: replica.phase for replica in cluster.status().replicas}
        assert phases == {stopped.name: "unready", other.name: "ready"}
    finally:
        os.kill(server(stopped), signal.SIGCONT)
    cluster.wait_for(cluster.has(2))
    assert wait_until(lambda: f"{stopped.name}: is ready again after " in cluster.printed(), seconds=20)


def test_metrics_of_the_cluster_and_its_door(cluster: Cluster) -> None:
    status = cluster.status()
    with urllib.request.urlopen(f"http://127.0.0.1:{status.metrics_port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    of = '{deployment="accelerator"}'
    assert f"triton_batching_cluster_replicas_desired{of} 2.0" in page
    assert f"triton_batching_cluster_replicas_ready{of} 2.0" in page
    assert f"triton_batching_cluster_deaths_total{of} 1.0" in page
    assert "envoy_cluster_upstream_rq_total" in page
    observed = json.loads(place.of_plan(cluster.plan).targets.read_text())
    assert {"targets": [f"127.0.0.1:{status.metrics_port}"]} in observed
    for replica in status.replicas:
        labels = {"deployment": "accelerator", "replica": replica.name}
        assert {"targets": [f"{replica.host}:{replica.metrics_port}"], "labels": labels} in observed


def test_commands_that_cannot_be_done_are_one_line(cluster: Cluster, golden: Callable[..., None]) -> None:
    said = []
    for arguments in (
        ("scale", "nothing", "2"),
        ("drain", "accelerator-999"),
        ("update", "accelerator", "--config-name", "fast"),
    ):
        done = cluster.tell(*arguments)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        said.append(f"$ {' '.join(arguments)}\n{done.stderr}")
    second = Cluster(cluster.plan)
    second.begin()
    assert second.ended() == 2
    said.append(f"$ up a second time\n{second.printed()}")
    golden("cluster_refusals", "\n".join(said), masks={r"There are: accelerator-.*": "There are: accelerator-N, ..."})


def test_killed_cluster_leaves_nothing_and_the_next_one_continues(cluster: Cluster) -> None:
    assert "has 1 replicas" in cluster.do("scale", "simulated_accelerator", "1")
    [before] = cluster.ready()
    remains = Remains(cluster)
    assert cluster.end(signal.SIGKILL) == -signal.SIGKILL
    assert remains.are_gone()

    cluster.up()
    assert "continues with 1 replicas of accelerator (the plan says 2); accelerator with baseline" in cluster.printed()
    [after] = cluster.ready()
    assert after.name != before.name
    remains = Remains(cluster)
    cluster.do("down")
    assert cluster.ended() == 0
    assert remains.are_gone()
