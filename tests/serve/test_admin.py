"""Only the user who started a server can load models on it: neither web pages nor other users of the machine."""

import base64
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType

import pytest
import tritonclient.grpc as triton
from bench import Bench
from other_user import NOBODY, as_nobody
from sleepers import PLAIN
from tiny_models import lookup
from tritonclient.utils import InferenceServerException

from perf.why.recording import recording
from serve import guard
from serve.doctor.__main__ import main as doctor
from serve.launcher import Server, Settings, launch
from serve.management import admin, api, loaded
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
server_test = pytest.mark.server


@pytest.fixture(scope="module")
def served(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("admin")
    lookup(repository)
    with bench.serving(("lookup",), repository) as running:
        yield running


def foreign_code(marker: Path) -> bytes:
    """The request of a hostile web page: a Python model that is not in the repository, with its code."""
    code = f"open({str(marker)!r}, 'w').close()\nclass TritonPythonModel:\n    def execute(self, requests): return []\n"
    config = {
        "backend": "python",
        "max_batch_size": 0,
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
    files = {"file:1/model.py": base64.b64encode(code.encode()).decode()}
    return json.dumps({"parameters": {"config": json.dumps(config), **files}}).encode()


def post(server: Server, path: str, body: bytes, headers: dict[str, str]) -> int:
    request = urllib.request.Request(f"http://{server.http_url}/v2/{path}", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@server_test
def test_a_web_page_cannot_run_code_on_the_server(served: Server, tmp_path: Path) -> None:
    marker = tmp_path / "foreign code ran"
    page = {"Content-Type": "text/plain", "Origin": "http://attacker.example"}
    assert post(served, "repository/models/foreign/load", foreign_code(marker), page) == 403
    assert not marker.exists()
    # The same call with the secret is what the restriction keeps others from.
    assert post(served, "repository/models/foreign/load", foreign_code(marker), admin.headers(served.http_url)) == 200
    assert marker.exists()
    api.call(served.http_url, "repository/models/foreign/unload", {}, expected=NoneType)


@server_test
@pytest.mark.parametrize(
    "path",
    [
        "repository/index",
        "repository/models/lookup/unload",
        "systemsharedmemory/region/a/register",
        "cudasharedmemory/region/a/register",
        "trace/setting",
        "models/lookup/trace/setting",
        "logging",
    ],
)
def test_every_admin_api_asks_for_the_secret_over_http(served: Server, path: str) -> None:
    assert post(served, path, b"{}", {}) == 403
    assert post(served, path, b"{}", {admin.HEADER: "guessed"}) == 403


@server_test
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.load_model("lookup"),
        lambda client: client.get_model_repository_index(),
        lambda client: client.register_system_shared_memory("a", "/a", 8),
        lambda client: client.update_trace_settings(settings={"trace_level": ["OFF"]}),
        lambda client: client.update_log_settings({"log_file": "/tmp/owned"}),
    ],
)
def test_every_admin_api_asks_for_the_secret_over_grpc(
    served: Server, call: Callable[[triton.InferenceServerClient], object]
) -> None:
    with (
        triton.InferenceServerClient(served.grpc_url) as client,
        pytest.raises(InferenceServerException, match="restricted"),
    ):
        call(client)


@server_test
def test_no_command_line_shows_the_secret(served: Server) -> None:
    (secret,) = admin.headers(served.grpc_url).values()
    shown = [path for path in Path("/proc").glob("[0-9]*/cmdline") if secret.encode() in _content(path)]
    assert shown == []
    assert secret not in served.log.read_text()


@root
@server_test
def test_another_user_cannot_read_the_secret(served: Server) -> None:
    assert admin.headers(served.grpc_url)
    assert as_nobody(lambda: admin.headers(served.grpc_url)) == "{}"
    (secret,) = admin.headers(served.grpc_url).values()

    def search() -> list[str]:
        places = [*admin._folders(), *Path("/proc").glob("[0-9]*")]
        files = [*(file for place in places[:2] for file in _files(place)), *(place / "environ" for place in places)]
        return [str(file) for file in files if secret.encode() in _content(file)]

    assert search()  # root finds it, in the environment and the files
    assert as_nobody(search) == "[]"


@server_test
def test_programs_of_others_say_whose_the_server_is(
    served: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin, "headers", lambda url: {})
    assert doctor([str(served.settings.repository), "--live", served.http_url]) == 2
    assert "as the user who started it" in " ".join(capsys.readouterr().err.split())
    with recording(f"http://{served.http_url}", "lookup", batched=True) as recorded:
        pass
    assert "keeps this for the user who started it" in recorded.missing


@pytest.mark.slow
@server_test
def test_the_secret_is_another_for_each_server_and_goes_with_it(bench: Bench, tmp_path: Path) -> None:
    """A second server, at the addresses of IPv6 if this machine has them."""
    lookup(tmp_path)
    first = bench.server()  # a new one, if it has crashed since the last test
    host = "::1" if has_ipv6() else "127.0.0.1"
    with launch(Settings(models=("lookup",), repository=tmp_path, host=host, arguments=PLAIN)) as other:
        urls = (other.http_url, other.grpc_url)
        secrets = [admin.headers(url)[admin.HEADER] for url in (*urls, first.http_url, first.grpc_url)]
        assert secrets[0] == secrets[1] != secrets[2] == secrets[3]
        assert Counters.read(other.grpc_url, "lookup") == Counters.read(f"http://{other.http_url}", "lookup")
        assert Metrics.read(other.metrics_url).pending == {"lookup": 0}
        assert len(loaded.index(other.http_url)) == 1  # with the secret
    assert [admin.headers(url) for url in urls] == [{}] * 2


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_the_secret_is_for_the_servers_own_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path / "kept"]))
    admin.publish("s", "127.0.0.1", [8000, 8001])
    admin.publish("t", "0.0.0.0", [9000])
    admin.publish("u", "::", [9001])
    for url in ("localhost:8000", "127.0.0.1:8001", "http://localhost:8000/v2", "grpcs://localhost:8001"):
        assert admin.headers(url) == {admin.HEADER: "s"}, url
    assert admin.headers("localhost:9000") == {admin.HEADER: "t"}
    assert admin.headers("[::1]:9001") == {admin.HEADER: "u"}
    others = ("10.0.0.1:8000", "elsewhere:8000", "localhost:8002", "localhost", "localhost:no", "dns:///localhost")
    # Another user may listen on the same port of IPv6.
    for url in (*others, "[::1]:8000", "[::1]:9000"):
        assert admin.headers(url) == {}, url
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "kept").iterdir()} == {0o600}


@root
def test_localhost_gets_no_secret_where_another_user_answers_on_ipv6(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clients try ::1 before 127.0.0.1, on which the server listens."""
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path / "kept"]))
    code = (
        f"import os, socket\nos.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "listening = socket.create_server(('::1', 0), family=socket.AF_INET6)\n"
        "print(listening.getsockname()[1], flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        admin.publish("s", "127.0.0.1", [port])
        assert admin.headers(f"localhost:{port}") == {}
        assert admin.headers(f"127.0.0.1:{port}") == {admin.HEADER: "s"}
        other.communicate("\n")
    assert admin.headers(f"localhost:{port}") == {admin.HEADER: "s"}


def test_a_pipe_in_place_of_a_secret_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user can make the folder first, and in it a pipe that nobody writes to."""
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path]))
    os.mkfifo(tmp_path / "8000.json", 0o600)
    assert admin.headers("localhost:8000") == {}


def test_no_secret_is_written_where_others_can_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path / "open", tmp_path / "link", Path("/proc/none")]))
    with pytest.raises(admin.FolderError, match=r"open to others; .*link is another.*; /proc/none: .*--open-admin"):
        admin.publish("s", "127.0.0.1", [8000])
    assert [*(tmp_path / "open").iterdir(), *(tmp_path / "private").iterdir()] == []


@root
def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "squatted").mkdir(mode=0o700)
    os.chown(tmp_path / "squatted", NOBODY, NOBODY)
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path / "squatted"]))
    with pytest.raises(admin.FolderError, match="squatted is another user's"):
        admin.publish("s", "127.0.0.1", [8000])


def test_files_of_launchers_that_are_gone_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path / "kept"]))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", lambda: gone.pid)
        admin.publish("old", "127.0.0.1", [8000])
    admin.publish("new", "127.0.0.1", [8001])
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["8001.json"]


@pytest.mark.slow
def test_the_guard_leaves_the_secret_of_the_next_server_on_the_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admin, "_folders", lambda: iter([tmp_path / "kept"]))
    (file,) = admin.publish("s", "127.0.0.1", [8000])
    guard.withdraw(file, launcher=os.getpid() + 1)
    assert admin.headers("localhost:8000") == {admin.HEADER: "s"}
    guard.withdraw(file, launcher=os.getpid())
    guard.withdraw(file, launcher=os.getpid())
    assert admin.headers("localhost:8000") == {}


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
