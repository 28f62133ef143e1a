"""Three real replicas behind the real front door, under a steady load of which every answer is checked."""

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from cluster_load import Load
from cluster_program import PLAN, Cluster, server
from processes import wait_until

from serve.cluster import place
from serve.cluster.status import Status

pytestmark = pytest.mark.server
REQUESTS = 150


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster") / "plan.toml", PLAN.format(replicas=3))
    running.up()
    yield running
    running.do("down")
    assert running.ended() == 0


@pytest.fixture(scope="module")
def load(cluster: Cluster) -> Iterator[Load]:
    status = cluster.status()
    with Load(status.http_port, status.grpc_port) as running:
        yield running


def deaths(status: Status) -> int:
    return status.deployments[0].deaths


def test_killed_replica_is_replaced_and_no_request_fails(cluster: Cluster, load: Load) -> None:
    load.wait_for(REQUESTS)
    before, killed = cluster.status(), cluster.ready()[0]
    assert killed.server_pid == server(killed)
    [row] = [line for line in cluster.do("status").splitlines() if f" {killed.name} " in line]
    assert f" {killed.server_pid} " in row
    os.kill(killed.server_pid, signal.SIGKILL)
    cluster.wait_for(lambda status: deaths(status) == deaths(before) + 1 and cluster.has(3)(status))
    load.wait_for(REQUESTS)
    load.assert_clean()
    names = {replica.name for replica in cluster.ready()}
    assert killed.name not in names
    assert f"{killed.name}: died: tritonserver was killed by SIGKILL" in cluster.printed()


def test_replica_that_ends_by_sigterm_is_replaced(cluster: Cluster, load: Load) -> None:
    before, ended = cluster.status(), cluster.ready()[0]
    os.kill(server(ended), signal.SIGTERM)
    cluster.wait_for(lambda status: deaths(status) == deaths(before) + 1 and cluster.has(3)(status))
    load.wait_for(REQUESTS)
    load.assert_clean()
    assert ended.name not in {replica.name for replica in cluster.ready()}
    assert f"{ended.name}: takes no new connections" in cluster.printed()


def test_scale_down_and_up_loses_nothing(cluster: Cluster, load: Load) -> None:
    assert "has 2 replicas" in cluster.do("scale", "simulated_accelerator", "2")
    assert len(cluster.ready()) == 2
    load.wait_for(REQUESTS)
    assert "has 3 replicas" in cluster.do("scale", "accelerator", "3")
    load.wait_for(REQUESTS)
    load.assert_clean()
    replicas = cluster.ready()
    assert len(replicas) == 3
    assert all(replica.requests for replica in replicas)


def test_drained_replica_answers_its_requests_and_is_replaced(cluster: Cluster, load: Load) -> None:
    drained = cluster.ready()[0].name
    assert f"{drained} has answered its requests and stopped" in cluster.do("drain", drained)
    cluster.wait_for(cluster.has(3))
    load.wait_for(REQUESTS)
    load.assert_clean()
    assert drained not in {replica.name for replica in cluster.ready()}
    assert f"{drained}: has answered all its requests" in cluster.printed()


def test_update_replaces_every_replica_and_loses_nothing(cluster: Cluster, load: Load) -> None:
    before = {replica.name for replica in cluster.ready()}
    assert "update done: 3 replicas with baseline" in cluster.do("update", "accelerator", "--config-name", "baseline")
    assert cluster.has(3)(cluster.status()), "the old ones have stopped"
    cluster.wait_for(cluster.has(3))
    load.wait_for(REQUESTS)
    load.assert_clean()
    replicas = cluster.ready()
    assert {replica.config_name for replica in replicas} == {"baseline"}
    assert not before & {replica.name for replica in replicas}


def test_canary_stands_beside_its_control_and_is_abandoned_or_promoted(cluster: Cluster, load: Load) -> None:
    before = {replica.name for replica in cluster.ready()}
    begin = ("canary", "simulated_accelerator", "--config-name", "dynamic", "--percent", "20")
    assert "get 20.0% of the requests each." in cluster.do(*begin)
    first = {replica.name: replica.requests for replica in cluster.ready()}
    load.wait_for(2 * REQUESTS)
    status = msgspec.json.decode(cluster.do("status", "--json"), type=Status)
    sent = {replica.name: replica.requests - first[replica.name] for replica in status.replicas}
    pair = {replica.role: replica for replica in status.replicas if replica.role}
    for role, config_name in (("canary", "dynamic"), ("control", "baseline")):
        assert pair[role].config_name == config_name
        assert sent[pair[role].name] / sum(sent.values()) == pytest.approx(0.2, abs=0.04), sent
        [served] = pair[role].served
        assert (served.requests > 0, served.failures, served.rows_per_execution >= 1) == (True, 0, True)
        assert 0 < served.queue_ms < served.queue_ms + served.compute_ms
    shown = cluster.do("status")
    assert re.search(rf"canary {pair['canary'].name}\W+control {pair['control'].name}\W", shown), shown
    assert re.search(r"compute, ms per request\W+\d+\.\d\d\W+\d+\.\d\d\W", shown), shown
    assert "the canary and its control have stopped" in cluster.do("abandon", "accelerator")
    assert {replica.name for replica in cluster.ready()} == before
    cluster.do(*begin)
    canary = cluster.ready()[-2]
    assert "update done: 3 replicas with dynamic" in cluster.do("promote", "accelerator")
    load.wait_for(REQUESTS)
    load.assert_clean()
    replicas = cluster.ready()
    assert {replica.config_name for replica in replicas} == {"dynamic"}
    assert canary.name in {replica.name for replica in replicas}


def test_stopped_replica_is_left_out_until_it_goes_on(cluster: Cluster, load: Load) -> None:
    stopped = cluster.ready()[0]
    os.kill(server(stopped), signal.SIGSTOP)
    try:
        time.sleep(5)
        load.wait_for(REQUESTS)
        phases = {replica.name: replica.phase for replica in cluster.status().replicas}
        assert phases.pop(stopped.name) == "unready"
        assert [*phases.values()] == ["ready", "ready"]
    finally:
        os.kill(server(stopped), signal.SIGCONT)
    cluster.wait_for(cluster.has(3))
    assert f"{stopped.name}: has not said for 3 s that it is ready; after 30 s (hung_s)" in cluster.printed()
    assert wait_until(lambda: f"{stopped.name}: is ready again after " in cluster.printed(), seconds=10)
    load.wait_for(REQUESTS)
    load.assert_clean()
    assert stopped.name in {replica.name for replica in cluster.ready()}


def test_metrics_of_the_cluster_and_its_door(cluster: Cluster, load: Load) -> None:
    status = cluster.status()
    with urllib.request.urlopen(f"http://127.0.0.1:{status.metrics_port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    of = '{deployment="accelerator"}'
    assert f"triton_batching_cluster_replicas_desired{of} 3.0" in page
    assert f"triton_batching_cluster_replicas_ready{of} 3.0" in page
    assert f"triton_batching_cluster_deaths_total{of} {deaths(status)}.0" in page
    assert "envoy_cluster_upstream_rq_total" in page
    observed = json.loads(place.of_plan(cluster.plan).targets.read_text())
    assert {"targets": [f"127.0.0.1:{status.metrics_port}"]} in observed
    for replica in status.replicas:
        labels = {"deployment": "accelerator", "replica": replica.name}
        assert {"targets": [f"{replica.host}:{replica.metrics_port}"], "labels": labels} in observed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scale", "nothing", "2"), "nothing: no such deployment or model. There are: accelerator."),
        (("drain", "accelerator-999"), "accelerator-999: no such replica. There are: accelerator-"),
        (("update", "accelerator", "--config-name", "fast"), "fast.pbtxt: no such file"),
    ],
)
def test_command_that_cannot_be_done_is_one_line(cluster: Cluster, arguments: tuple[str, ...], words: str) -> None:
    done = cluster.tell(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_second_up_of_the_plan_is_refused(cluster: Cluster) -> None:
    second = Cluster(cluster.plan)
    second.begin()
    assert second.ended() == 2
    assert second.printed() == (
        f"{cluster.plan}: its cluster runs already. Look at it with python -m serve.cluster status, or end it with "
        "down.\n"
    )
    assert len(cluster.ready()) == 3
