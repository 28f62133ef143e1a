"""Rules and dashboard for Prometheus: every metric that they name is on the page of a real server."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml
from policy_models import stand_in
from processes import wait_until
from scrapes import scrape
from sleepers import PLAIN
from tiny_models import parameters, ragged_padded

from serve.launcher import Server, Settings, launch
from serve.resources import loopback_port

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docker" / "observe"
# Of Prometheus itself.
BUILT_IN = {"up", "ALERTS"}
# Of a cluster's own page (tests/serve/cluster/test_cluster.py).
CLUSTER = {"triton_batching_cluster_replicas_desired", "triton_batching_cluster_replicas_ready"}
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "offset", "bool", "group_left", "group_right"}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus-alertmanager")),
    reason="promtool is not installed: apt-get install prometheus prometheus-alertmanager",
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    """The queries of the dashboard, with values in place of its variables."""
    found = [
        target["expr"]
        for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    return [re.sub(r"\$(model|instance)", ".+", query).replace("$__rate_interval", "1m") for query in found]


def metrics(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads."""
    plain = re.sub(r'"[^"]*"', "", expression)
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|without|on)\s*\([^)]*\)|\boffset \w+", " ", plain)
    names = re.findall(r"[a-zA-Z_:][\w:]*(?!\w*\s*\()", plain)
    return {name for name in names if name not in WORDS and not re.match(r"\d", name)}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, with our metrics, and a model of each kind; "batched" has run 3 executions of 8 rows."""
    repository = tmp_path_factory.mktemp("observed")
    stand_in(repository, "batched", queue_limit_ms="2000")
    values = parameters(padding_budget="latency")
    ragged_padded(repository, "ragged", config=values + "dynamic_batching { }")
    names = ("batched", "ragged")
    with launch(Settings(models=names, repository=repository, arguments=PLAIN, exporter=True)) as running:
        for _ in range(3):
            ask(running.grpc_url)
        yield running


def ask(url: str) -> None:
    """One request of 8 rows."""
    tensor = triton.InferInput("x", [8, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((8, 4), dtype=np.float32))
    with triton.InferenceServerClient(url) as client:
        client.infer("batched", [tensor])


@pytest.mark.slow
@needs_prometheus
def test_the_rules_pass_their_tests() -> None:
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=FILES, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(["amtool", "check-config", "alertmanager.yml"], cwd=FILES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_alert_fires_in_a_test() -> None:
    tests = yaml.safe_load((FILES / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}
    assert len(fired) >= 10


@pytest.mark.server
def test_every_metric_of_the_rules_and_the_dashboard_exists(observed: Server) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = {name for name, _ in scrape(observed.metrics_url)} | recorded | BUILT_IN | CLUSTER
    used = [*queries(), *(rule["expr"] for rule in rules())]
    assert {name for query in used for name in metrics(query)} <= known
    assert len(queries()) >= 18


@needs_prometheus
@pytest.mark.server
def test_the_two_commands_of_the_page_observe_a_server(observed: Server, tmp_path: Path) -> None:
    folder = tmp_path / "observe"
    prometheus, alerts = (f"127.0.0.1:{loopback_port(())}" for _ in range(2))
    shutil.copytree(FILES, folder)
    targets = folder / "targets.json"
    targets.write_text(json.dumps([{"targets": [observed.metrics_url]}]))
    (folder / "alertmanagers.json").write_text(json.dumps([{"targets": [alerts]}]))
    [commands] = re.findall(r"```bash\n(.*?)```", (FILES / "README.md").read_text(), re.DOTALL)
    commands = commands.replace("127.0.0.1:9090", prometheus).replace("127.0.0.1:9093", alerts)
    with contextlib.ExitStack() as stack:
        for command in commands.replace("/tmp/", f"{tmp_path}/").splitlines():
            program = stack.enter_context(subprocess.Popen(shlex.split(command), cwd=folder, stderr=subprocess.DEVNULL))
            stack.callback(program.terminate)
        assert wait_until(lambda: is_ready(prometheus) and is_ready(alerts), seconds=40)
        rows = 'sum(triton_batching_execution_rows_sum{model="batched"})'
        assert wait_until(lambda: asked(prometheus, rows) == [24.0], seconds=40)
        assert asked(prometheus, "slo:triton_batching_error_budget:ratio") == [0.001]
        for query in queries():
            asked(prometheus, query)  # raises if Prometheus cannot read it
        assert read(f"http://{alerts}/api/v2/status")["cluster"]["status"] == "disabled"
        # A replica that goes away is seen without a restart of Prometheus, because the file is read again.
        targets.write_text(json.dumps([{"targets": ["127.0.0.1:9"]}]))
        assert wait_until(lambda: asked(prometheus, 'up{instance="127.0.0.1:9"}') == [0.0], seconds=30)


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=20):
            return True
    except OSError:
        return False


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as reply:
        return json.load(reply)


def asked(prometheus: str, query: str) -> list[float]:
    answer = read(f"http://{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    return [float(result["value"][1]) for result in answer["data"]["result"]]
