"""`python -m serve` as a user runs it: its output, its end, and what it does when one of its processes dies.

Each program here has servers of its own, because they are killed: seven starts in all.
"""

import http.client
import http.server
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from policy_models import stand_in
from processes import alive, descendants, leftovers, wait_until
from scrapes import scrape, value
from server_processes import IMPATIENT, model_that, prefix, tritonserver
from serving_program import ROOT, ask, printed, program
from sleepers import MODEL, PLAIN, sleeper
from tiny_models import lookup, python_model

from serve import guard_process, supervisor
from serve.launcher import LaunchError, Server, Settings
from serve.management import admin, api
from serve.server_flags import LATENCIES, SettingsError, latencies, tracing, tracing_danger
from serve.stubs import instances
from serve.supervisor import supervise
from triton_batching.processes import arguments

CONFIG = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
READY = "gRPC clients take --url "
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
# It dies while it loads if there is the file that is named; it removes the file first.
FRAGILE = """
import os
MARK = {!r}
if os.path.exists(MARK):
    os.unlink(MARK)
    os._exit(3)
"""
pytestmark = pytest.mark.server


def under_load(url: str, act: Callable[[], bool]) -> None:
    """Act while four clients ask one after another; some get answers before, and again after that."""
    answers: list[str] = []
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            answers.append(ask(url))

    clients = [threading.Thread(target=load) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        assert wait_until(lambda: "answered" in answers, seconds=20)
        assert act()
        before = len(answers)
        assert wait_until(lambda: "answered" in answers[before:], seconds=40), answers[before:]
    finally:
        ended.set()
        for client in clients:
            client.join()


def test_it_serves_again_after_each_death_and_leaves_nothing(tmp_path: Path, golden: Callable[..., None]) -> None:
    """The deaths: a model's process and the one that comes in its place, the server under load, and the guard."""
    models, mark, output = tmp_path / "models", tmp_path / "mark", tmp_path / "output.txt"
    fragile = sleeper(models, "sleeper", f"{CONFIG}instance_group [ {{ count: 1 kind: KIND_CPU }} ]") / "1" / "model.py"
    fragile.write_text(FRAGILE.format(str(mark)) + MODEL)
    (lookup(models, "absent") / "1" / "model.onnx").unlink()
    caller = python_model(models, "caller", "return []") / "config.pbtxt"
    caller.write_text(caller.read_text() + 'parameters { key: "steps" value { string_value: "absent" } }\n')
    serving = program(models, output, "--", *PLAIN, *IMPATIENT, "--log-verbose=1")
    assert printed(output, READY)
    url = output.read_text().partition(READY)[2].split()[0]
    log = ROOT / "build" / f"tritonserver-{serving.pid}.log"
    assert "TRITONBACKEND_ModelInstanceInitialize" in log.read_text()
    # Summaries are on; each is NaN before the first request.
    (metrics,) = re.findall(r"metrics (127\.0\.0\.1:\d+)", " ".join(output.read_text().split()))
    page = api.text(f"http://{metrics}/metrics", timeout_s=20)
    assert all(f'quantile="{quantile}"' in page for quantile in ("0.25", "0.5", "0.95", "0.99", "0.999"))

    mark.touch()
    os.kill(min(instances(prefix(tritonserver(serving.pid)))), signal.SIGKILL)
    assert printed(output, READY, times=2)
    assert ask(url) == "answered"
    assert not mark.exists()

    server = tritonserver(serving.pid)
    shared, stubs = prefix(server), descendants(server)

    def kill_server() -> bool:
        # A process that hangs does not notice that its server died, and no signal but SIGKILL ends it.
        os.kill(min(stubs), signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        return printed(output, READY, times=3)

    under_load(url, kill_server)
    assert not alive(stubs)
    assert not leftovers(shared)

    server = tritonserver(serving.pid)
    shared = prefix(server)
    os.kill(psutil.Process(server).ppid(), signal.SIGKILL)
    assert printed(output, READY, times=4)
    assert not alive({server})
    assert not leftovers(shared)
    assert ask(url) == "answered"

    # A service manager sends SIGTERM to every process of a service at once.
    processes, shared = descendants(serving.pid), prefix(tritonserver(serving.pid))
    for pid in (*processes, serving.pid):
        os.kill(pid, signal.SIGTERM)
    assert serving.wait(40) == 0
    assert not alive(processes)
    assert not leftovers(shared)
    logs = [log, *(log.with_suffix(f".{number}.log") for number in (1, 2, 3))]
    for file in logs:
        assert file.stat().st_mode & 0o777 == 0o600
        file.unlink()
    # Whether Triton refuses the load before the server is given up is a race between two processes.
    refused = r"^a process of 'sleeper' died, and the model could not be loaded again.*\n"
    masks = {str(serving.pid): "PID", r"(?m)^.*\r": "", refused: ""}
    golden("serve_deaths", output.read_text(), masks=masks)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[str]]]:
    """The address of a collector on this machine, and the messages that it gets."""
    messages: list[str] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", messages
        server.shutdown()


def test_it_traces_has_our_metrics_and_many_signals_end_its_wait(
    tmp_path: Path, collector: tuple[str, list[str]]
) -> None:
    url, messages = collector
    stand_in(tmp_path / "models", "batched")
    output = tmp_path / "output.txt"
    change = "supervisor.FIRST_WAIT_S = 300"
    serving = program(tmp_path / "models", output, "--trace", url, "--", *PLAIN, change=change)
    assert printed(output, READY)
    text = " ".join(output.read_text().split())
    assert "--trace: tritonserver 2.51.0 can die" in text
    page = scrape(text.partition("metrics ")[2].split()[0])
    assert value(page, "triton_batching_max_batch_size", model="batched") == 64
    assert value(page, "nv_inference_count", model="batched") == 0

    connection = http.client.HTTPConnection(text.partition("HTTP ")[2].split()[0].rstrip(","), timeout=30)
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}]}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    connection.request("POST", "/v2/models/batched/infer", json.dumps(body), headers)
    assert connection.getresponse().status == 200
    connection.close()
    assert wait_until(lambda: TRACE in "".join(messages), seconds=60)
    assert f'"parentSpanId":"{PARENT}"' in "".join(messages).replace(" ", "")

    os.kill(tritonserver(serving.pid), signal.SIGKILL)
    assert printed(output, "it is started again in 300 s")
    processes = descendants(serving.pid)
    for _ in range(500):
        if serving.poll() is not None:
            break
        serving.send_signal(signal.SIGTERM)
        serving.send_signal(signal.SIGINT)
    assert serving.wait(30) in (0, 130)  # Python handles SIGINT first if both wait
    assert "Traceback" not in output.read_text()
    assert output.read_text().count("stopped. The log is") == 1
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)


def test_a_signal_ends_a_start(tmp_path: Path) -> None:
    model_that(tmp_path / "models", "slow", initialize="time.sleep(300)")
    serving = program(tmp_path / "models", tmp_path / "output.txt")
    stub = "triton_python_backend_stub"

    def loading() -> bool:
        return any(stub in " ".join(arguments(pid)) for pid in descendants(serving.pid))

    assert wait_until(loading, seconds=60)
    processes = descendants(serving.pid)
    shared = prefix(tritonserver(serving.pid))
    serving.send_signal(signal.SIGINT)
    assert serving.wait(30) == 130
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
    assert not leftovers(shared)


def test_it_gives_up_after_too_many_deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server, which ends by force, and two restarts that fail before there is a log."""
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(supervisor, "MOST_DEATHS", 3)
    folder = lookup(tmp_path / "models")
    reports: list[str] = []
    seen: list[tuple[Server, set[int]]] = []

    def ready(server: Server) -> None:
        (folder / "config.pbtxt").write_text("{")
        seen.append((server, {server.pid} | descendants(server.pid)))
        os.kill(tritonserver(server.pid), signal.SIGSEGV)

    settings = Settings(models=("lookup",), repository=folder.parent, log=tmp_path / "server.log", arguments=PLAIN)
    with pytest.raises(LaunchError, match=r"the start failed: .*config\.pbtxt.*That was death 3 in 60 s"):
        supervise(settings, restart=True, ready=ready, report=reports.append)
    assert [report.partition(":")[0].partition(";")[0] for report in reports] == [
        "tritonserver was killed by SIGSEGV",
        "the start failed",
    ]
    assert [path.name for path in tmp_path.glob("*.log")] == ["server.1.log"]
    [(server, processes)] = seen
    assert not alive(processes)
    assert not leftovers(server.shared_memory_prefix)


def test_a_stopped_guard_is_ended_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_process, "END_S", 2.0)
    lookup(tmp_path)
    seen: list[tuple[Server, set[int]]] = []

    class StoppedError(Exception):
        pass

    def ready(server: Server) -> None:
        seen.append((server, {server.pid} | descendants(server.pid)))
        os.kill(server.pid, signal.SIGSTOP)
        raise StoppedError

    settings = Settings(models=("lookup",), repository=tmp_path, arguments=PLAIN)
    with pytest.raises(StoppedError):
        supervise(settings, restart=False, ready=ready, report=pytest.fail)
    [(server, processes)] = seen
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
    assert not leftovers(server.shared_memory_prefix)
    assert not [file for file in admin.files((server.http_port, server.grpc_port)) if file.exists()]


def test_the_metrics_of_latencies_are_those_that_a_user_names() -> None:
    assert latencies(["--log-verbose=1"]) == LATENCIES
    assert latencies(["--metrics-config=counter_latencies=false"]) == LATENCIES
    for own in ("summary_latencies=false", "histogram_latencies=false"):
        assert latencies([f"--metrics-config={own}"]) == ()
    assert latencies(["--metrics-config", "summary_quantiles=0.5:0.05"]) == ()


@pytest.mark.parametrize("url", ["localhost:4318", "http://localhost:4318", "https://a:1/v1/traces", "http://[a/v1"])
def test_an_address_that_is_no_collector_is_a_mistake(url: str) -> None:
    with pytest.raises(SettingsError, match=r"http://HOST:4318/v1/traces"):
        tracing(url, ())


def test_what_is_said_about_traces() -> None:
    with pytest.raises(SettingsError, match="Leave out one"):
        tracing("http://localhost:4318/v1/traces", ["--trace-config=level=OFF"])
    flags = tracing("http://localhost:4318/v1/traces", ())
    assert "2.57.1 can die" in tracing_danger(flags, "2.57.1")
    assert not tracing_danger(flags, "2.58.0")
    assert not tracing_danger((), "2.51.0")
