"""The folder of one server in the temporary directory, and the removal of folders that nobody cleaned up.

Both the launcher and the guard of a server hold the lock on its folder, so the folder is locked as long as one of them
lives. A new folder is locked under another name and then renamed, so that no other start takes it for a leftover.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serve import guard, stubs
from triton_batching.terminal import Mistake

NAME = re.compile(r"triton-batching-([0-9a-f]{12})")
# Triton passes paths to a shell without quotes.
PLAIN = re.compile(r"[A-Za-z0-9_./+,@%:=-]+")
# The length of a folder's name, with the slash before it.
LENGTH = len("/triton-batching-") + 12
ELSEWHERE = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


class NoFolderError(Mistake):
    """There is no place for a server's files."""


@dataclass(frozen=True, kw_only=True)
class ServerFolder:
    """A folder of mode 0700 and the lock on it (a file descriptor).

    The names of the server's files in /dev/shm begin with `prefix`.
    """

    path: Path
    prefix: str
    lock: int

    def plain(self, path: Path, name: str) -> Path:
        """`path`, or a link `name` to it in this folder if the path has characters that a shell changes."""
        path = path.resolve()
        if PLAIN.fullmatch(str(path)):
            return path
        link = self.path / name
        link.symlink_to(path)
        return link


@contextlib.contextmanager
def create(*, longest: int = os.pathconf("/", "PC_PATH_MAX")) -> Iterator[ServerFolder]:
    """Make a folder and remove it at the end; first remove folders whose launcher and guard were both killed.

    longest: the most characters of its path, for sockets in it.
    """
    base = _base(longest - LENGTH)
    _remove_leftovers(base)
    key = uuid.uuid4().hex[:12]
    hidden, path = base / f".triton-batching-{key}", base / f"triton-batching-{key}"
    hidden.mkdir(mode=0o700)
    lock = _locked(hidden)
    if lock is None:
        raise NoFolderError(f"{hidden}: cannot be locked, so nobody could notice the end of its server. Set TMPDIR.")
    try:
        hidden.rename(path)
        yield ServerFolder(path=path, prefix=_prefix(key), lock=lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _prefix(key: str) -> str:
    return f"triton_batching_{key}_"


def _base(longest: int) -> Path:
    """The temporary directory, or another place if its path is not plain or too long."""
    places = [Path(tempfile.gettempdir()), *ELSEWHERE]
    for place in places:
        if len(str(place)) <= longest and PLAIN.fullmatch(str(place)) and os.access(place, os.W_OK | os.X_OK):
            return place
    raise NoFolderError(
        f"no place for the server's files: none of {', '.join(map(str, places))} is writable and has a path without "
        "spaces and letters outside ASCII, which Triton's shell needs. Set TMPDIR to such a folder."
    )


def _remove_leftovers(base: Path) -> None:
    for path in base.glob("triton-batching-*"):
        name = NAME.fullmatch(path.name)
        if name is None or (lock := _locked(path)) is None:
            continue
        prefix = _prefix(name[1])
        # A server ends a little later than its guard. Its folder is then left for a later start.
        if not stubs.servers(prefix):
            stubs.kill(prefix)
            guard.sweep(prefix)
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked(path: Path) -> int | None:
    """A lock on the folder; None if another process has it, or if another user owns the folder."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    os.close(lock)
    return None
