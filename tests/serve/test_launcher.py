"""The launcher starts a real tritonserver as asked, and leaves nothing behind after any kind of end."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import alive, descendants, leftovers, wait_until
from server_processes import tritonserver
from serving_program import ask
from sleepers import sleeper
from tiny_models import lookup, python_model

from export.repository import RepositoryError
from serve.launcher import LaunchError, Server, Settings, launch
from serve.management import loaded, traces
from serve.management.metrics import Metrics
from serve.management.statistics import Counters
from serve.resources import PortError
from serve.server_flags import SettingsError
from triton_batching.processes import arguments

ROOT = Path(__file__).parents[2]
SLEEPER = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
pytestmark = pytest.mark.server


def test_ready_with_exactly_what_was_asked(server: Server) -> None:
    with urllib.request.urlopen(f"http://{server.http_url}/v2/health/ready") as answer:
        assert answer.status == 200
    assert server.configs["ranker"].HasField("dynamic_batching")
    assert server.configs["ranker"].instance_group[0].count == 1
    assert server.running()


def test_only_this_machine_can_connect(server: Server) -> None:
    ports = {server.http_port, server.grpc_port, server.metrics_port}
    listening = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, port = address.split(":")
        if state == "0A" and int(port, 16) in ports:
            listening.add(host)
    assert listening == {"0100007F"}


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_a_server_on_ipv6_is_read_at_its_addresses(tmp_path: Path) -> None:
    lookup(tmp_path)
    with launch(Settings(models=("lookup",), repository=tmp_path, host="::1")) as running:
        assert running.grpc_url == f"[::1]:{running.grpc_port}"
        assert Counters.read(running.grpc_url, "lookup") == Counters.read(f"http://{running.http_url}", "lookup")
        assert Metrics.read(running.metrics_url).pending == {"lookup": 0}
        assert len(loaded.index(running.http_url)) == 1  # with the secret


def test_stop_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    lookup(tmp_path)
    log = tmp_path / "kept" / "server.log"
    with launch(Settings(models=("lookup",), repository=tmp_path, log=log)) as running:
        processes = {running.pid} | descendants(running.pid)
        assert len(processes) >= 3  # guard, server, one stub
        assert leftovers(running.shared_memory_prefix)
        assert running.log == log
        guard = arguments(running.pid)
        folder = guard[guard.index("serve.guard") + 1]
        assert Path(folder).is_dir()
    assert not alive(processes)
    assert not leftovers(running.shared_memory_prefix)
    assert not Path(folder).exists()
    assert "Started HTTPService" in log.read_text()


def test_stop_answers_the_requests_in_flight(tmp_path: Path) -> None:
    """One request runs for a second and two wait in the queue when the stop begins."""
    sleeper(tmp_path, "sleeper", SLEEPER, fixed_ms=1000)
    with ThreadPoolExecutor(3) as pool:
        with launch(Settings(models=("sleeper",), repository=tmp_path)) as running:
            answers = [pool.submit(ask, running.grpc_url) for _ in range(3)]
            assert wait_until(lambda: Metrics.read(running.metrics_url).pending["sleeper"] == 2, seconds=20)
        assert [answer.result() for answer in answers] == ["answered"] * 3


@pytest.mark.parametrize("form", ["documented", "deprecated"])
def test_stop_writes_the_last_traces(tmp_path: Path, form: str) -> None:
    sleeper(tmp_path / "models", "sleeper", SLEEPER)
    flags = traces.arguments(tmp_path / "trace", 1)
    if form == "deprecated":
        flags = (f"--trace-file={tmp_path / 'trace'}", "--trace-level=TIMESTAMPS", "--trace-rate=1")
    with launch(Settings(models=("sleeper",), repository=tmp_path / "models", arguments=flags)) as running:
        assert [ask(running.grpc_url) for _ in range(3)] == ["answered"] * 3
    # Too few for a file while the server runs.
    files = [file for file in tmp_path.glob("trace*") if file.stat().st_size]
    assert files
    if form == "documented":
        assert [trace.model for trace in traces.read(tmp_path / "trace")] == ["sleeper"] * 3


@pytest.mark.parametrize("victim", ["parent", "guard", "server"])
def test_a_killed_process_leaves_no_orphan(tmp_path: Path, victim: str) -> None:
    lookup(tmp_path)
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom serve.launcher import Settings, launch\n"
        f"with launch(Settings(models=('lookup',), repository=Path({str(tmp_path)!r}))) as server:\n"
        "    print(server.pid, server.shared_memory_prefix, flush=True)\n"
        "    while server.running():\n        time.sleep(0.05)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    pid, prefix = parent.stdout.readline().split()
    guard = int(pid)
    assert leftovers(prefix)
    processes = {guard} | descendants(guard)
    os.kill({"parent": parent.pid, "guard": guard, "server": tritonserver(guard)}[victim], signal.SIGKILL)
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
    parent.wait(20)
    assert wait_until(lambda: not leftovers(prefix), seconds=5), leftovers(prefix)


def test_a_port_in_use_is_named(ranker: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(PortError, match=rf"port {port} on 127\.0\.0\.1 cannot be used .*--http-port"),
            launch(Settings(models=("ranker",), http_port=port)),
        ):
            pass


def test_a_missing_model_file_says_how_to_make_it(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    (folder / "1" / "model.onnx").unlink()
    with (
        pytest.raises(SettingsError, match=r"model\.onnx: no such file.* Copy the ONNX file there, .* --name lookup"),
        launch(Settings(models=("lookup",), repository=tmp_path)),
    ):
        pass


def test_a_bad_config_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    path = folder / "config.pbtxt"
    path.write_text(path.read_text().replace("TYPE_FP32", "FP32", 1))
    with (
        pytest.raises(RepositoryError, match=r"config\.pbtxt: not a model configuration, at 4:\d+ .*FP32"),
        launch(Settings(models=("lookup",), repository=tmp_path)),
    ):
        pass


def test_a_missing_variant_is_refused_not_replaced(tmp_path: Path) -> None:
    lookup(tmp_path)
    with (
        pytest.raises(RepositoryError, match=r"silently load config\.pbtxt"),
        launch(Settings(models=("lookup",), config_name="tuned", repository=tmp_path)),
    ):
        pass


def test_a_graph_that_does_not_fit_ends_with_the_reason(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    path = folder / "config.pbtxt"
    path.write_text(path.read_text().replace("dims: [ 1 ]", "dims: [ 2 ]", 1))
    with pytest.raises(LaunchError) as failed, launch(Settings(models=("lookup",), repository=tmp_path)):
        pass
    message = str(failed.value)
    first, rest = message.split("\n", 2)[1:]
    assert first.startswith("reason: failed to load 'lookup' version 1: ")
    assert "model 'lookup', tensor 'x': the model expects 2 dimensions (shape [-1,1])" in first
    assert rest.startswith("last lines of its log")
    assert not re.search(r"^ *[+|]", message, re.MULTILINE)
    assert len(message.splitlines()) <= 22


def test_a_file_that_the_server_completes_is_served(tmp_path: Path) -> None:
    (lookup(tmp_path) / "config.pbtxt").write_text("")
    with launch(Settings(models=("lookup",), repository=tmp_path)) as running:
        assert running.configs["lookup"].HasField("dynamic_batching")
        assert running.configs["lookup"].max_batch_size == 4


def test_a_failing_python_model_ends_with_its_traceback(tmp_path: Path) -> None:
    folder = python_model(tmp_path, "broken", "return []")
    (folder / "1" / "model.py").write_text("import not_installed_anywhere\n")
    with (
        pytest.raises(LaunchError, match=r"reason: failed to load 'broken' .*No module named 'not_installed_anywhere'"),
        launch(Settings(models=("broken",), repository=tmp_path)),
    ):
        pass


def test_arguments_after_ours_reach_the_server(tmp_path: Path) -> None:
    lookup(tmp_path)
    settings = Settings(models=("lookup",), repository=tmp_path, arguments=("--log-verbose=1",))
    with launch(settings) as running:
        assert "TRITONBACKEND_ModelInstanceInitialize" in running.log.read_text()


def test_nothing_of_ours_reaches_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model.py that works here must work in the container, where this project is not on its path."""
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve").mkdir()  # must not stand in for ours
    folder = python_model(tmp_path / "models", "paths", "return []")
    (folder / "1" / "model.py").write_text(
        "import os, sys\nprint('PATHS', os.environ.get('PYTHONPATH'), os.getcwd(), sys.path, flush=True)\n"
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    with launch(Settings(models=("paths",), repository=tmp_path / "models")) as running:
        line = next(line for line in running.log.read_text().splitlines() if line.startswith("PATHS"))
    assert line.startswith("PATHS /users/own")
    assert f"'{ROOT}'" not in line


def test_a_proxy_is_not_asked_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    lookup(tmp_path)
    with launch(Settings(models=("lookup",), repository=tmp_path)) as running:
        assert running.running()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"http_port": 70000}, "port 70000: a port is a number from 0 to 65535"),
        ({"arguments": ("--http-port=18555",)}, "--http-port=18555 after -- would override a flag"),
        ({"arguments": ("--model-repository", "/else")}, "--model-repository after -- would override a flag"),
        ({"arguments": ("--model-repo=/else",)}, "--model-repo=/else after -- would override a flag"),
        ({"arguments": ("--grpc-po", "1")}, "--grpc-po after -- would override a flag"),
        ({"arguments": ("--http-restr=health",)}, "--http-restr=health after -- restricts APIs"),
        ({"log": Path("/proc/no/such/place.log")}, "the log cannot be written there"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    lookup(tmp_path)
    settings = replace(Settings(models=("lookup",), repository=tmp_path), **changes)
    with pytest.raises((PortError, SettingsError), match=message), launch(settings):
        pass


def test_one_port_for_two_endpoints_is_refused(tmp_path: Path) -> None:
    lookup(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = Settings(models=("lookup",), repository=tmp_path, http_port=port, grpc_port=port)
    message = f"port {port} is given twice, with --http-port and --grpc-port;"
    with pytest.raises(PortError, match=message), launch(settings):
        pass
