"""Rules, dashboard and `python -m serve.observe`: every metric that they name is on the page of a real server."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
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
from processes import alive, descendants, wait_until
from scrapes import scrape
from sleepers import PLAIN
from tiny_models import parameters, ragged_padded

from serve.cluster import place
from serve.exporter.endpoint import serving
from serve.launcher import Server, Settings, launch
from serve.observe import dashboard, following, programs
from serve.observe.__main__ import main
from serve.observe.following import Following
from triton_batching.terminal import Mistake

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
    found = [target["expr"] for panel in json.loads(dashboard.text())["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$(model|instance)", ".+", query).replace("$__rate_interval", "1m") for query in found]


def metrics(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads."""
    plain = re.sub(r'"[^"]*"', "", expression)
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|without|on)\s*\([^)]*\)|\boffset \w+", " ", plain)
    names = re.findall(r"[a-zA-Z_:][\w:]*(?!\w*\s*\()", plain)
    return {name for name in names if name not in WORDS and not re.match(r"\d", name)}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model of each kind that has metrics of its own; "batched" has run 3 executions of 8 rows."""
    repository = tmp_path_factory.mktemp("observed")
    stand_in(repository, "batched", queue_limit_ms="2000")
    values = parameters(padding_budget="elements", padding_budget_run_elements="10")
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


def test_the_names_of_a_query_are_found() -> None:
    expression = 'sum by (model) (rate(a_total{b="c d"}[5m])) / max by (e) (x:y:z5m > 0) and (f offset 2h) > scalar(g)'
    assert metrics(expression) == {"a_total", "x:y:z5m", "f", "g"}


@pytest.mark.server
def test_every_metric_of_the_rules_and_the_dashboard_exists(observed: Server) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = {name for name, _ in scrape(observed.metrics_url)} | recorded | BUILT_IN | CLUSTER
    used = [*queries(), *(rule["expr"] for rule in rules())]
    assert {name for query in used for name in metrics(query)} <= known
    assert len(queries()) >= 18


def test_the_dashboard_is_current() -> None:
    assert (FILES / "dashboard.json").read_text() == dashboard.text(), "run: python -m serve.observe.dashboard"


@needs_prometheus
@pytest.mark.server
def test_prometheus_observes_a_server_until_ctrl_c(observed: Server, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps([{"targets": [observed.metrics_url]}]))
    with output.open("w") as file:
        program = subprocess.Popen(
            [sys.executable, "-m", "serve.observe", "--targets", str(targets)],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        assert wait_until(lambda: "Ctrl-C" in output.read_text() or program.poll() is not None, seconds=40)
        prometheus, alertmanager = re.findall(r"(?:Prometheus|Alertmanager) (http://\S+)", output.read_text())
        rows = 'sum(triton_batching_execution_rows_sum{model="batched"})'
        assert wait_until(lambda: asked(prometheus, rows) == [24.0], seconds=30)
        assert asked(prometheus, "slo:triton_batching_error_budget:ratio") == [0.001]
        for query in queries():
            asked(prometheus, query)  # raises if Prometheus cannot read it
        assert read(f"{alertmanager}/api/v2/status")["cluster"]["status"] == "disabled"
        # A replica that goes away is seen without a restart of Prometheus, because the file is read again.
        targets.write_text(json.dumps([{"targets": ["127.0.0.1:9"]}]))
        assert wait_until(lambda: asked(prometheus, 'up{instance="127.0.0.1:9"}') == [0.0], seconds=30)
    finally:
        below = descendants(program.pid)
        folders = [Path(folder) for folder in re.findall(r"/\S*/triton-batching-observe-\w+", commands(below))]
        program.send_signal(signal.SIGINT)
        code = program.wait(30)
    assert code == 130
    assert len(below) == 2
    assert folders
    assert not alive(below)
    assert not any(folder.exists() for folder in folders)


def test_a_server_is_a_target_from_its_first_answer_on_and_a_cluster_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_base", lambda: tmp_path)
    monkeypatch.setattr(following, "LOOK_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url, own = f"localhost:{port}", f"127.0.0.1:{port}"
    watched = Following(url)
    assert watched.groups() == []
    here = place.of_plan(tmp_path / "plan.toml")
    with place.taken(here), serving("127.0.0.1", port, lambda: "up 1\n"):
        here.targets.write_text(json.dumps([{"targets": [own]}]))
        assert watched.groups() == [{"targets": [own]}]
        here.targets.write_text(json.dumps([{"targets": ["127.0.0.1:9"]}]))
        both = [{"targets": [url]}, {"targets": ["127.0.0.1:9"]}]
        assert watched.groups() == both
    assert watched.groups() == [{"targets": [url]}]
    # As a cluster that was killed leaves it.
    with place.taken(here):
        watched.groups()
        here.targets.write_text(json.dumps([{"targets": [own]}]))
        kept = here.targets.rename(tmp_path / "kept")
    here.folder.mkdir(mode=0o700, exist_ok=True)
    kept.rename(here.targets)
    assert not place.is_taken(here)
    assert watched.groups() == [{"targets": [own]}]
    assert Following(url).groups() == []


def commands(pids: set[int]) -> str:
    return " ".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").replace("/data", " ") for pid in pids)


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as reply:
        return json.load(reply)


def asked(prometheus: str, query: str) -> list[float]:
    answer = read(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    return [float(result["value"][1]) for result in answer["data"]["result"]]


def test_mistakes_end_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    broken = tmp_path / "targets.json"
    broken.write_text('{"targets": []}')
    monkeypatch.setattr(programs, "find", lambda *names: names[0])
    for arguments, message in (
        (["--targets", str(broken)], "no targets in it"),
        (["--targets", "nowhere.json"], "cannot be read"),
        (["--port", "70000"], "not a whole number from 0 to 65,535"),
        (["--port", "9", "--alerts-port", "9"], "given twice"),
    ):
        try:
            code: object = main(arguments)
        except SystemExit as end:
            code = end.code
        assert code == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert len(printed.strip().splitlines()) == 1


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Mistake, match="apt-get install prometheus"):
        programs.find("prometheus")
