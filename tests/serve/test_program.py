"""`python -m serve` as a user runs it: its output, its end and its exit code."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import alive, descendants, leftovers, wait_until
from server_processes import prefix, tritonserver
from tiny_models import lookup, python_model

from serve.__main__ import main
from serve.management import api
from serve.server_flags import LATENCIES, latencies

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.server
FREE = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


def started(repository: Path, output: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the program with its output in a file, and wait until it is ready."""
    command = [sys.executable, "-m", "serve", "--repository", str(repository), *FREE, *arguments]
    with output.open("w") as file:
        program = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, text=True)
    assert wait_until(lambda: "ready" in output.read_text() or program.poll() is not None, seconds=60)
    return program


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_serves_until_it_is_stopped(tmp_path: Path, how: signal.Signals, code: int) -> None:
    lookup(tmp_path / "models")
    lookup(tmp_path / "models", "second")
    output = tmp_path / "output.txt"
    program = started(tmp_path / "models", output, "--model", "lookup", "--model", "second", "--", "--log-verbose=1")
    text = output.read_text()
    assert "lookup" in text
    assert "second" in text
    assert "dynamic, 0 us delay" in text
    log = ROOT / "build" / f"tritonserver-{program.pid}.log"
    assert f"the log is {log}" in " ".join(text.split())
    assert "TRITONBACKEND_ModelInstanceInitialize" in log.read_text()  # the argument after -- reached the server
    # Summaries are on; each is NaN before the first request.
    (metrics,) = re.findall(r"metrics (127\.0\.0\.1:\d+)", " ".join(text.split()))
    page = api.text(f"http://{metrics}/metrics", timeout_s=20)
    assert all(f'quantile="{quantile}"' in page for quantile in ("0.25", "0.5", "0.95", "0.99", "0.999"))
    processes = descendants(program.pid)
    program.send_signal(how)
    assert program.wait(30) == code
    assert "stopped. The log is" in output.read_text()
    assert not alive(processes)


def test_the_metrics_of_latencies_are_those_that_a_user_names() -> None:
    assert latencies(["--log-verbose=1"]) == LATENCIES
    assert latencies(["--metrics-config=counter_latencies=false"]) == LATENCIES
    assert latencies(["--metrics-config=summary_latencies=false"]) == ()
    assert latencies(["--metrics-config=histogram_latencies=false"]) == ()
    assert latencies(["--metrics-config", "summary_quantiles=0.5:0.05"]) == ()


def test_a_signal_to_all_processes_leaves_nothing(tmp_path: Path) -> None:
    """A service manager sends SIGTERM to every process of a service at once."""
    lookup(tmp_path / "models")
    program = started(tmp_path / "models", tmp_path / "output.txt")
    processes = descendants(program.pid)
    shared = prefix(tritonserver(program.pid))
    for pid in (*processes, program.pid):
        os.kill(pid, signal.SIGTERM)
    assert program.wait(30) == 0
    assert not alive(processes)
    assert not leftovers(shared)


def test_models_that_are_not_exported_are_left_out(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    (lookup(tmp_path / "models", "absent") / "1" / "model.onnx").unlink()
    caller = python_model(tmp_path / "models", "caller", "return []") / "config.pbtxt"
    caller.write_text(caller.read_text() + 'parameters { key: "steps" value { string_value: "absent" } }\n')
    output = tmp_path / "output.txt"
    program = started(tmp_path / "models", output)
    program.send_signal(signal.SIGINT)
    assert program.wait(30) == 130
    assert "left out: absent has no model file yet\n" in output.read_text()
    assert "left out: caller calls absent, which has no model file yet" in output.read_text()


def test_a_server_that_dies_is_reported(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    output = tmp_path / "output.txt"
    program = started(tmp_path / "models", output, "--model", "lookup", "--restart", "never")
    os.kill(tritonserver(program.pid), signal.SIGKILL)
    assert program.wait(30) == 1
    text = output.read_text()
    assert "tritonserver was killed by SIGKILL." in text
    assert "last lines of its log" in text


def test_a_model_that_cannot_load_ends_with_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = python_model(tmp_path, "broken", "return []")
    (folder / "1" / "model.py").write_text("1 / 0\n")
    assert main(["--repository", str(tmp_path), *FREE]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_repository_without_a_model_to_serve_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FREE, "--repository", str(tmp_path)]) == 2
    assert "there is no model" in capsys.readouterr().err
    (lookup(tmp_path, "absent") / "1" / "model.onnx").unlink()
    assert main([*FREE, "--repository", str(tmp_path)]) == 2
    assert "none of its models has its file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere"], "no model 'nowhere'"),
        (["--model", "ranker", "--config-name", "fast"], "silently load config.pbtxt"),
        (["--model", "ranker", "--http-port", "-1"], "port -1: a port is a number from 0 to 65535. Choose others"),
        (["--model", "ranker", "--host", ""], "--host is empty"),
        (["--model", "ranker", "--http-port", "70000"], "a port is a number from 0 to 65535"),
        (["--model", "ranker", "--", "--grpc-port=1"], "after -- would override a flag"),
        (["--repository", "nowhere"], "nowhere: no such directory"),
    ],
)
@pytest.mark.usefixtures("ranker")
def test_mistakes_end_with_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FREE, *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.strip().splitlines()) == 1
