"""A server that dies is started again, unless it dies again and again, and the dead one leaves nothing behind."""

import os
import signal
import threading
from pathlib import Path

import pytest
from processes import alive, descendants, leftovers, wait_until
from server_processes import model_that, prefix, tritonserver
from serving_program import ROOT, ask, printed, program
from sleepers import PLAIN, sleeper
from tiny_models import lookup

from serve import supervisor
from serve.__main__ import main
from serve.launcher import LaunchError, Server, Settings
from serve.supervisor import supervise
from triton_batching.processes import arguments

CONFIG = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
pytestmark = pytest.mark.server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third death ends it, and it waits for no restart."""
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(supervisor, "MOST_DEATHS", 3)


def test_a_server_killed_under_load_comes_back_and_leaves_nothing(tmp_path: Path) -> None:
    sleeper(tmp_path / "models", "sleeper", f"{CONFIG}instance_group [ {{ count: 3 kind: KIND_CPU }} ]")
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output, "--", *PLAIN)
    try:
        assert printed(output, "gRPC clients take --url ")
        url = output.read_text().partition("--url ")[2].split()[0]
        answers: list[str] = []
        ended = threading.Event()

        def load() -> None:
            while not ended.is_set():
                answers.append(ask(url))

        clients = [threading.Thread(target=load) for _ in range(4)]
        for client in clients:
            client.start()
        assert wait_until(lambda: "answered" in answers, seconds=20)
        server = tritonserver(serving.pid)
        shared = prefix(server)
        stubs = descendants(server)
        assert len(stubs) == 3
        # A process that hangs does not notice that its server died, and no signal but SIGKILL ends it.
        os.kill(min(stubs), signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        assert wait_until(lambda: not alive(stubs), seconds=20), alive(stubs)
        assert printed(output, "gRPC clients take --url ", times=2)
        assert not leftovers(shared)
        before = len(answers)
        assert wait_until(lambda: "answered" in answers[before:], seconds=20), answers[before:]
        ended.set()
        for client in clients:
            client.join()
        assert ask(url) == "answered"
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0
    log = ROOT / "build" / f"tritonserver-{serving.pid}.log"
    line = next(line for line in output.read_text().splitlines() if "it is started again" in line)
    assert line.startswith("tritonserver was killed by SIGKILL; it is started again in 0.5 s. Its log is kept as ")
    old_log = log.with_suffix(".1.log")
    assert str(old_log) in line
    for file in (log, old_log):
        assert "Started GRPCInferenceService" in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        file.unlink()


@pytest.mark.usefixtures("impatient")
def test_it_gives_up_after_too_many_deaths_in_a_minute(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    settings = Settings(
        models=("lookup",), repository=tmp_path / "models", log=tmp_path / "server.log", arguments=PLAIN
    )
    ports: set[tuple[int, int, int]] = set()
    starts: list[Server] = []
    reports: list[str] = []

    def ready(server: Server) -> None:
        starts.append(server)
        ports.add((server.http_port, server.grpc_port, server.metrics_port))
        os.kill(tritonserver(server.pid), signal.SIGSEGV)

    with pytest.raises(LaunchError, match=r"tritonserver was killed by SIGSEGV\. That was death 3 in 60 s") as failed:
        supervise(settings, restart=True, ready=ready, report=reports.append)
    assert "last lines of its log" in str(failed.value)
    assert len(starts) == 3
    assert len(ports) == 1
    assert len(reports) == 2
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["server.1.log", "server.2.log", "server.log"]


@pytest.mark.usefixtures("impatient")
def test_a_restart_that_fails_is_tried_again_and_gives_up_with_the_reason(tmp_path: Path) -> None:
    folder = model_that(tmp_path, "fickle")
    reports: list[str] = []

    def ready(server: Server) -> None:
        (folder / "1" / "model.py").write_text("1 / 0\n")
        os.kill(tritonserver(server.pid), signal.SIGKILL)

    with pytest.raises(LaunchError, match=r"the start failed: .*death 3 in(.|\n)*ZeroDivisionError"):
        supervise(
            Settings(models=("fickle",), repository=tmp_path, arguments=PLAIN),
            restart=True,
            ready=ready,
            report=reports.append,
        )
    assert [report.partition(";")[0] for report in reports] == [
        "tritonserver was killed by SIGKILL",
        "the start failed: tritonserver ended with code 1 while it started",
    ]


@pytest.mark.usefixtures("impatient")
def test_a_restart_that_fails_before_there_is_a_log_is_tried_again(tmp_path: Path) -> None:
    folder = lookup(tmp_path / "models")
    reports: list[str] = []

    def ready(server: Server) -> None:
        (folder / "config.pbtxt").write_text("{")
        os.kill(tritonserver(server.pid), signal.SIGKILL)

    settings = Settings(
        models=("lookup",), repository=tmp_path / "models", log=tmp_path / "server.log", arguments=PLAIN
    )
    with pytest.raises(LaunchError, match=r"the start failed: .*config\.pbtxt.*death 3 in"):
        supervise(settings, restart=True, ready=ready, report=reports.append)
    assert len(reports) == 2
    assert [path.name for path in tmp_path.glob("*.log")] == ["server.1.log"]


def test_a_first_start_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    model_that(tmp_path, "broken", top="1 / 0")
    reports: list[str] = []
    settings = Settings(models=("broken",), repository=tmp_path, arguments=PLAIN)
    with pytest.raises(LaunchError, match="ZeroDivisionError"):
        supervise(settings, restart=True, ready=lambda _: None, report=reports.append)
    assert reports == []


def test_never_ends_with_the_first_death(tmp_path: Path) -> None:
    lookup(tmp_path)
    settings = Settings(models=("lookup",), repository=tmp_path, arguments=PLAIN)
    with pytest.raises(LaunchError, match=r"tritonserver was killed by SIGKILL\.\nlast lines of its log"):
        supervise(
            settings,
            restart=False,
            ready=lambda server: os.kill(tritonserver(server.pid), signal.SIGKILL),
            report=pytest.fail,
        )


def test_a_signal_ends_the_wait_for_a_restart(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output, "--", *PLAIN, change="supervisor.FIRST_WAIT_S = 300")
    assert printed(output, "gRPC clients take --url ")
    os.kill(tritonserver(serving.pid), signal.SIGKILL)
    assert printed(output, "it is started again in 300 s")
    serving.send_signal(signal.SIGINT)
    assert serving.wait(20) == 130
    assert "stopped. The log is" in output.read_text()


def test_a_signal_ends_a_start(tmp_path: Path) -> None:
    model_that(tmp_path / "models", "slow", initialize="time.sleep(300)")
    output = tmp_path / "output.txt"
    serving = program(tmp_path / "models", output)
    stub = "triton_python_backend_stub"

    def loading() -> bool:
        return any(stub in " ".join(arguments(pid)) for pid in descendants(serving.pid))

    assert wait_until(loading, seconds=60)
    processes = descendants(serving.pid)
    shared = prefix(tritonserver(serving.pid))
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(30) == 0
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
    assert not leftovers(shared)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_start_timeout_is_a_positive_number(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--start-timeout", seconds])
    assert exited.value.code == 2
    assert f"--start-timeout: {seconds} is not a number of seconds above 0" in capsys.readouterr().err


def test_a_start_ends_after_its_timeout(tmp_path: Path) -> None:
    model_that(tmp_path / "models", "slow", initialize="time.sleep(300)")
    output = tmp_path / "output.txt"
    assert program(tmp_path / "models", output, "--start-timeout", "2.5").wait(60) == 1
    assert "tritonserver was not ready after 2.5 s (--start-timeout" in output.read_text()
