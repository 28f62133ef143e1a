"""The folder of a server is private and removed with the server; a later start removes it only if nobody uses it."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from processes import SHARED_MEMORY

from serve import guard, server_folder, stubs
from serve.server_folder import NoFolderError, create

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


@pytest.mark.slow
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
