"""The launcher starts a real tritonserver as asked, and leaves nothing behind after any kind of end.

One server of its own is looked at from its start to its end, one is killed, and two do not get ready.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import SHARED_MEMORY, alive, descendants, leftovers, wait_until
from server_processes import model_that, tritonserver
from serving_program import ROOT, ask
from sleepers import PLAIN, sleeper
from tiny_models import lookup, python_model

from serve import guard
from serve.__main__ import main
from serve.launcher import Server, Settings, launch
from serve.management import gpu_use
from serve.management.metrics import Metrics
from serve.server_folder import create
from triton_batching.processes import arguments, is_running
from triton_batching.terminal import Mistake

SLEEPER = 'max_batch_size: 1\ninput [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
PATHS = """
import os, sys
print('PATHS', os.environ.get('PYTHONPATH'), os.getcwd(), sys.path, flush=True)
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
FREE = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
pytestmark = pytest.mark.server


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A server that has ended, and what was seen of it while it ran."""

    server: Server
    processes: set[int]
    folder: Path
    shared: list[Path]
    modes: list[int]
    umask: str
    descriptors: tuple[int, int]
    listening: set[str]
    answers: list[str]
    gpu_use: gpu_use.GpuUse

    @property
    def log(self) -> str:
        return self.server.log.read_text()


def listening(ports: set[int]) -> set[str]:
    """The addresses, as /proc has them, at which these ports are open."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = [address.split(":") for _, address, _, state, *_ in sockets if state == "0A"]
    return {host for host, port in addresses if int(port, 16) in ports}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """One with three models, one of which runs for a second and has three requests at the stop."""
    folder = tmp_path_factory.mktemp("launcher")
    (lookup(folder / "models") / "config.pbtxt").write_text("")
    sleeper(folder / "models", "sleeper", SLEEPER, fixed_ms=1000)
    (python_model(folder / "models", "paths", "return []") / "1" / "model.py").write_text(PATHS)
    (folder / "serve").mkdir()  # must not stand in for ours
    settings = Settings(
        models=("lookup", "sleeper", "paths"),
        repository=folder / "models",
        log=folder / "kept" / "server.log",
        arguments=("--log-verbose=1", gpu_use.METRICS_INTERVAL),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setenv("PYTHONPATH", "/users/own")
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        patch.chdir(folder)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            with launch(settings) as server, gpu_use.sampled(server.metrics_url) as use:
                patch.undo()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                pid = tritonserver(server.pid)
                shared = [SHARED_MEMORY / name for name in leftovers(server.shared_memory_prefix)]
                wait_until(lambda: all(path.stat().st_mode & 0o077 == 0 for path in shared), seconds=10)
                guarding = arguments(server.pid)
                seen = {
                    "server": server,
                    "processes": {server.pid} | descendants(server.pid),
                    "folder": Path(guarding[guarding.index("serve.guard") + 1]),
                    "shared": shared,
                    "modes": [path.stat().st_mode & 0o777 for path in (*shared, server.log)],
                    "umask": Path(f"/proc/{pid}/status").read_text().partition("Umask:\t")[2].split()[0],
                    "descriptors": (psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)[0], hard),
                    "listening": listening({server.http_port, server.grpc_port, server.metrics_port}),
                }
                answers = [pool.submit(ask, server.grpc_url) for _ in range(3)]
                assert wait_until(lambda: Metrics.read(server.metrics_url).pending["sleeper"] == 2, seconds=20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield Ended(**seen, answers=[answer.result() for answer in answers], gpu_use=use)  # type: ignore[arg-type]


def test_only_this_machine_can_connect_and_files_are_private(ended: Ended) -> None:
    assert ended.listening == {"0100007F"}
    assert set(ended.modes) == {0o600}
    assert ended.umask == "0077"
    allowed, hard = ended.descriptors
    assert allowed == min(hard, guard.MOST_DESCRIPTORS)


def test_stop_answers_the_requests_in_flight_and_leaves_nothing(ended: Ended) -> None:
    assert ended.answers == ["answered"] * 3
    assert len(ended.processes) >= 3  # guard, server, one stub
    assert ended.shared
    assert not alive(ended.processes)
    assert not leftovers(ended.server.shared_memory_prefix)
    assert not ended.folder.exists()
    assert "Started HTTPService" in ended.log


def test_arguments_reach_the_server_and_a_file_is_completed(ended: Ended) -> None:
    assert "TRITONBACKEND_ModelInstanceInitialize" in ended.log
    assert ended.server.configs["lookup"].HasField("dynamic_batching")
    assert ended.server.configs["lookup"].max_batch_size == 4


def test_nothing_of_ours_reaches_the_models(ended: Ended) -> None:
    """A model.py that works here must work in the container, where this project is not on its path."""
    line = next(line for line in ended.log.splitlines() if line.startswith("PATHS"))
    assert line.startswith("PATHS /users/own")
    assert f"'{ROOT}'" not in line


def test_a_server_without_a_gpu_has_no_samples(ended: Ended) -> None:
    assert bool(ended.gpu_use.samples) == (gpu_use.driver() is not None)


def test_files_of_killed_launchers_and_guards_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the guard while it lives, and otherwise by the next start of a server."""
    lookup(tmp_path / "models")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    program = (
        "import time\nfrom pathlib import Path\nfrom serve.launcher import Settings, launch\n"
        f"with launch(Settings(models=('lookup',), repository=Path({str(tmp_path / 'models')!r}))) as server:\n"
        "    print(server.pid, server.shared_memory_prefix, flush=True)\n    time.sleep(600)\n"
    )
    environment = os.environ | {"TMPDIR": str(temporary)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    assert parent.stdout is not None
    pid, prefix = parent.stdout.readline().split()
    (folder,) = temporary.glob("triton-batching-*")
    with create():
        assert folder.is_dir()
    server = tritonserver(int(pid))
    stub = min(descendants(server))
    os.kill(stub, signal.SIGSTOP)
    for victim in (parent.pid, int(pid)):
        os.kill(victim, signal.SIGKILL)
    parent.wait()
    # The server ends by itself. The stub that is stopped, and what it keeps, is left for the next start.
    os.kill(server, signal.SIGKILL)
    assert wait_until(lambda: not is_running(server) and not is_running(int(pid)), seconds=20)
    assert folder.is_dir()
    assert leftovers(prefix)
    with create():
        assert not folder.exists()
        assert not leftovers(prefix)
        assert wait_until(lambda: not is_running(stub), seconds=10)


def test_models_that_do_not_load_end_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    path = lookup(tmp_path) / "config.pbtxt"
    path.write_text(path.read_text().replace("dims: [ 1 ]", "dims: [ 2 ]", 1))
    assert main(["--repository", str(tmp_path), *FREE]) == 1
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) <= 24
    masks = {r"(?s)last lines of its log.*": "last lines of its log ...", r"\d+ ms": "N ms"}
    golden("serve_graph_does_not_fit", printed, masks=masks)


def test_a_process_that_dies_while_it_loads_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_that(tmp_path, "dying", top="time.sleep(0.5); os._exit(3)")  # so that it is seen first
    assert main(["--repository", str(tmp_path), *FREE]) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert "the Python process of a model ended with code 3" in printed or "'dying'" in printed
    assert "not ready after" not in printed


def refused(settings: Settings) -> str:
    with pytest.raises(Mistake) as failed, launch(settings):
        pass
    assert "\n" not in str(failed.value)
    return str(failed.value)


def test_settings_and_files_that_cannot_work_are_one_line_each(tmp_path: Path, golden: Callable[..., None]) -> None:
    for model in ("good", "absent", "bad"):
        lookup(tmp_path, model)
    (tmp_path / "absent" / "1" / "model.onnx").unlink()
    path = tmp_path / "bad" / "config.pbtxt"
    path.write_text(path.read_text().replace("TYPE_FP32", "FP32", 1))
    good = Settings(models=("good",), repository=tmp_path)
    wrong: list[dict[str, Any]] = [
        {"models": ("absent",)},
        {"models": ("bad",)},
        {"models": ("nowhere",)},
        {"config_name": "tuned"},
        {"repository": tmp_path / "nowhere"},
        {"http_port": 70000},
        {"http_port": -1},
        {"host": ""},
        {"log": Path("/proc/no/such/place.log")},
    ]
    flags = (("--http-port=18555",), ("--model-repository", "/else"), ("--model-repo=/else",), ("--grpc-po", "1"))
    wrong += [{"arguments": flag} for flag in (*flags, ("--http-restr=health",))]
    said = [f"{changes}\n    {refused(replace(good, **changes))}" for changes in wrong]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said.append(f"a port in use\n    {refused(replace(good, http_port=port))}")
    said.append(f"one port twice\n    {refused(replace(good, http_port=port, grpc_port=port))}")
    golden("serve_mistakes", "\n".join(said), masks={rf"\b{port}\b": "PORT"})


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_start_timeout_is_a_positive_number(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--start-timeout", seconds])
    assert exited.value.code == 2
    assert f"--start-timeout: {seconds} is not a number of seconds above 0" in capsys.readouterr().err


def test_a_start_ends_after_its_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_that(tmp_path / "models", "slow", initialize="time.sleep(300)")
    assert main(["--repository", str(tmp_path / "models"), *FREE, "--start-timeout", "2.5", "--", *PLAIN]) == 1
    assert "tritonserver was not ready after 2.5 s (--start-timeout" in capsys.readouterr().err


def test_a_repository_without_a_model_to_serve_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FREE, "--repository", str(tmp_path)]) == 2
    assert "there is no model" in capsys.readouterr().err
    (lookup(tmp_path, "absent") / "1" / "model.onnx").unlink()
    assert main([*FREE, "--repository", str(tmp_path)]) == 2
    assert "none of its models has its file" in capsys.readouterr().err


def test_too_few_descriptors_end_the_start_with_one_line(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    called = [sys.executable, "-m", "serve", "--repository", str(tmp_path / "models"), *FREE]
    ended = subprocess.run(
        ["bash", "-c", 'ulimit -n 150; exec "$@"', "bash", *called],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "may open 150 files at most (ulimit -Hn), and a server with 1 model instances" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
