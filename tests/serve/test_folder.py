"""The folder of a server is private and removed with the server; a later start removes it only if nobody uses it."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest
from processes import SHARED_MEMORY, descendants, leftovers, wait_until
from server_processes import tritonserver
from sleepers import PLAIN
from tiny_models import lookup

from serve import guard, resources, server_folder, stubs
from serve.launcher import Settings, launch
from serve.server_folder import NoFolderError, create
from triton_batching.processes import is_running

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory without the folders of other servers."""
    folder = tmp_path / ".temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def leftover(folder: Path, name: str = "triton-batching-0123456789ab") -> Path:
    (folder / name / "work").mkdir(parents=True)
    return folder / name


def test_the_next_start_removes_files_of_dead_servers(temporary: Path) -> None:
    left = leftover(temporary)
    shared = SHARED_MEMORY / "triton_batching_0123456789ab_region"
    shared.touch()
    with create() as folder:
        assert not left.exists()
        assert not shared.exists()
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert folder.path.parent == temporary
    assert list(temporary.iterdir()) == []


def test_names_that_another_user_makes_are_left_alone(tmp_path: Path) -> None:
    """Every user can read the prefix of the names on the server's command line."""
    target = tmp_path / "of this user"
    target.touch(mode=0o644)
    names = [SHARED_MEMORY / f"triton_batching_fedcba987654_{name}" for name in ("own", "link", "folder", "other")]
    own, link, folder, other = names
    own.touch(mode=0o644)
    link.symlink_to(target)
    folder.mkdir()
    other.touch(mode=0o644)
    if os.getuid() == 0:
        os.chown(other, 65534, 65534)
    try:
        guard._keep_private("triton_batching_fedcba987654_")
        assert own.stat().st_mode & 0o777 == 0o600
        assert target.stat().st_mode & 0o777 == 0o644
        guard.sweep("triton_batching_fedcba987654_")
        assert not own.exists()
        assert link.is_symlink()
        assert folder.is_dir()
        assert other.exists() == (os.getuid() == 0)
    finally:
        for path in (own, link, other):
            path.unlink(missing_ok=True)
        folder.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(("user", "count"), [(65534, 0), (0, 1)])
def test_a_process_of_another_user_is_not_taken_for_a_server(user: int, count: int) -> None:
    code = f"import os\nos.setresuid({user}, {user}, {user})\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", code, "triton_batching_fedcba987654_"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(stubs.servers("triton_batching_fedcba987654_")) == count
        process.communicate(b"\n")


def test_only_folders_that_are_certainly_left_are_removed(temporary: Path) -> None:
    (temporary / "triton-batching-aaaaaaaaaaaa").symlink_to(leftover(temporary, "elsewhere"))
    leftover(temporary, "triton-batching-by-hand")
    before = set(temporary.rglob("*"))
    with create() as first, create() as second:
        assert first.path.is_dir()
        assert second.path.is_dir()
    assert set(temporary.rglob("*")) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_of_another_user_stays(temporary: Path) -> None:
    other = leftover(temporary)
    os.chown(other, 65534, 65534)
    with create():
        assert other.is_dir()


def make_many(temporary: str) -> int:
    """How many of 50 folders still existed inside their `with` block."""
    tempfile.tempdir = temporary
    count = 0
    for _ in range(50):
        with create() as folder:
            (folder.path / "file").touch()
            count += (folder.path / "file").exists()
    return count


def test_starts_do_not_remove_each_others_folders(temporary: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(make_many, [str(temporary)] * 4)) == [50] * 4
    assert list(temporary.iterdir()) == []


def test_a_path_with_a_space_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "a b"
    spaced.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spaced))
    with create() as folder:
        assert folder.path.parent in server_folder.ELSEWHERE
        assert folder.path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(server_folder, "ELSEWHERE", ())
    with (
        pytest.raises(NoFolderError, match=r"a b is writable and has a path without spaces .* Set TMPDIR"),
        create(),
    ):
        pass


@pytest.mark.server
def test_files_of_killed_launchers_and_guards_are_removed(tmp_path: Path, temporary: Path) -> None:
    lookup(tmp_path / "models")
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


@pytest.mark.server
def test_files_of_a_server_are_private_and_it_may_open_many(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    log = tmp_path / "server.log"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with launch(Settings(models=("lookup",), repository=tmp_path / "models", log=log, arguments=PLAIN)) as running:
            shared = [SHARED_MEMORY / name for name in leftovers(running.shared_memory_prefix)]
            assert shared
            assert wait_until(lambda: all(path.stat().st_mode & 0o077 == 0 for path in shared), seconds=10)
            assert log.stat().st_mode & 0o777 == 0o600
            server = tritonserver(running.pid)
            assert "Umask:\t0077" in Path(f"/proc/{server}/status").read_text()
            allowed, _ = psutil.Process(server).rlimit(psutil.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert allowed == min(hard, guard.MOST_DESCRIPTORS)


def test_too_few_descriptors_end_the_start_with_one_line(tmp_path: Path) -> None:
    lookup(tmp_path / "models")
    needed = resources.SERVER_DESCRIPTORS + 1 + resources.CONNECTIONS
    called = [sys.executable, "-m", "serve", "--repository", str(tmp_path / "models"), "--http-port=0", "--grpc-port=0"]
    ended = subprocess.run(
        ["bash", "-c", f'ulimit -n {needed - 1}; exec "$@"', "bash", *called, "--metrics-port=0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert f"may open {needed - 1} files at most (ulimit -Hn), and a server with 1 model instances" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
