"""The launcher starts a real tritonserver as asked, and leaves nothing behind however it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from processes import alive, descendants, leftovers, wait_until
from tiny_models import lookup, python_model

from export.repository import RepositoryError
from serve import installation
from serve.installation import InstallationError
from serve.launcher import LaunchError, Server, Settings, SettingsError, launch

ROOT = Path(__file__).parents[1]
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


def test_stop_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    lookup(tmp_path)
    log = tmp_path / "kept" / "server.log"
    before = set(leftovers())
    with launch(Settings(models=("lookup",), repository=tmp_path, log=log)) as running:
        processes = {running.pid} | descendants(running.pid)
        assert len(processes) >= 3  # guard, server, one stub
        assert set(leftovers()) > before
        folder = running.log.parent
    assert not alive(processes)
    assert set(leftovers()) <= before
    assert not folder.exists()
    assert "Started HTTPService" in log.read_text()


@pytest.mark.parametrize("victim", ["parent", "guard", "server"])
def test_a_killed_process_leaves_no_orphan(tmp_path: Path, victim: str) -> None:
    lookup(tmp_path)
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom serve.launcher import Settings, launch\n"
        f"with launch(Settings(models=('lookup',), repository=Path({str(tmp_path)!r}))) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    while server.running():\n        time.sleep(0.05)\n"
    )
    before = set(leftovers())
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    guard = int(parent.stdout.readline())
    processes = {guard} | descendants(guard)
    tritonserver = next(pid for pid in processes if Path(f"/proc/{pid}/comm").read_text().strip() == "tritonserver")
    os.kill({"parent": parent.pid, "guard": guard, "server": tritonserver}[victim], signal.SIGKILL)
    assert wait_until(lambda: not alive(processes), seconds=20), alive(processes)
    parent.wait(20)
    assert wait_until(lambda: set(leftovers()) <= before, seconds=5), leftovers()


def test_a_port_in_use_is_named(ranker: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=rf"port {port} on 127\.0\.0\.1 cannot be used .*--http-port"),
            launch(Settings(models=("ranker",), http_port=port)),
        ):
            pass


def test_a_missing_model_file_says_how_to_make_it(tmp_path: Path) -> None:
    folder = lookup(tmp_path)
    (folder / "1" / "model.onnx").unlink()
    with (
        pytest.raises(SettingsError, match=r"model\.onnx: no such file.* python -m export lookup"),
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
    said = str(failed.value)
    assert "last lines of its log" in said
    assert "model 'lookup', tensor 'x': the model expects 2 dimensions (shape [-1,1])" in said
    assert len(said.splitlines()) <= 22


def test_a_failing_python_model_ends_with_its_traceback(tmp_path: Path) -> None:
    folder = python_model(tmp_path, "broken", "return []")
    (folder / "1" / "model.py").write_text("import not_installed_anywhere\n")
    with (
        pytest.raises(LaunchError, match="No module named 'not_installed_anywhere'"),
        launch(Settings(models=("broken",), repository=tmp_path)),
    ):
        pass


def test_arguments_after_ours_reach_the_server(tmp_path: Path) -> None:
    lookup(tmp_path)
    settings = Settings(models=("lookup",), repository=tmp_path, arguments=("--log-verbose=1",))
    with launch(settings) as running:
        assert "TRITONBACKEND_ModelInstanceInitialize" in running.log.read_text()


def test_no_tritonserver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InstallationError, match="make setup, or pip install --no-deps nvidia-pytriton"):
        installation.find()


def test_a_python_without_a_stub_names_those_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Version(tuple[int, ...]):
        major, minor = 3, 99

    monkeypatch.setattr("sys.version_info", Version((3, 99)))
    with pytest.raises(InstallationError, match=r"Python 3\.99 has no triton_python_backend_stub .*3\.11"):
        installation.find()


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "version_of_numpy", lambda: "2.4.6")
    with pytest.raises(InstallationError, match="returns every output empty"):
        installation.find()


def test_a_native_backend_wins_over_the_drop_in(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "onnxruntime").mkdir(parents=True)
    (own / "python").mkdir()
    found = installation.Installation(binary=Path("tritonserver"), backends=own)
    assembled = found.assemble_backends(tmp_path / "without")
    assert (assembled / "onnxruntime").resolve() == (ROOT / "serve" / "backends" / "onnxruntime").resolve()
    (own / "onnxruntime" / "libtriton_onnxruntime.so").touch()
    assembled = found.assemble_backends(tmp_path / "with")
    assert (assembled / "onnxruntime").resolve() == (own / "onnxruntime").resolve()
