"""The watchdog between a launcher and its tritonserver: `python -m serve.guard FOLDER LOG PREFIX COMMAND...`.

It owns the server process. The first line of its standard input is an `Inheritance` as JSON. When its standard input
closes, because the launcher says stop or has died in any way, it stops the server (SIGINT, wait, SIGKILL). However the
server ended, it then kills the processes that the server left and removes what is left in
/dev/shm. FOLDER is removed too when the launcher is gone. The exit code is the server's.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from serve import hidden_arguments

GRACE_S = 12.0
POLL_S = 0.1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHARED_MEMORY = Path("/dev/shm")
PROC = Path("/proc")
# More would only cost memory: a server takes one descriptor for each connection.
MOST_DESCRIPTORS = 65_536
VISIBLE = "triton-batching: the secret of the admin APIs is on the server's command line, which other users can read"


class Inheritance(TypedDict):
    """What must not be on a command line, which every user of the machine can read.

    `environment` is the server's, `hidden` the value of each argument of COMMAND that is a key of it, `files` those of
    `admin.publish`, which are removed with the server.
    """

    environment: dict[str, str]
    hidden: dict[str, str]
    files: list[str]


def sweep(prefix: str) -> None:
    """Remove every shared-memory file of this user whose name starts with `prefix`."""
    for path, _ in _files(prefix):
        path.unlink(missing_ok=True)


def _files(prefix: str) -> Iterator[tuple[Path, int]]:
    """This user's shared-memory files and their modes. Others see the prefix, and may make files and links with it."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode):
                yield path, stat.S_IMODE(found.st_mode)


def _die_with_guard() -> None:
    # The last resort, for a guard that is itself killed with SIGKILL: the kernel then sends the server SIGTERM.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _adopt_orphans() -> None:
    """Become the parent of the processes that the server leaves behind, in place of the system's first process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _children() -> list[int]:
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                # The name in brackets may hold spaces; the parent is the second field after it.
                parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == os.getpid():
                found.append(int(folder.name))
    return found


def _end_orphans() -> None:
    """Kill what the server left; a Python process of a killed server may hang in a lock and ignores SIGTERM.

    Their own children come to this process in turn. A process id is not given to another before it is waited for.
    """
    end = time.monotonic() + GRACE_S
    while (orphans := _children()) and time.monotonic() < end:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def _launcher_gone(launcher: int) -> bool:
    return os.getppid() != launcher


def _keep_private(prefix: str) -> None:
    """Triton makes files that every user can read, whatever the umask; no request is in one before its model is up."""
    for path, mode in _files(prefix):
        if mode & 0o077:
            with contextlib.suppress(FileNotFoundError):
                path.chmod(0o600)


def _wait_for_end(server: subprocess.Popen[bytes], launcher: int, prefix: str) -> None:
    while server.poll() is None:
        _keep_private(prefix)
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable or _launcher_gone(launcher):
            return


def withdraw(file: Path, launcher: int) -> None:
    """Remove a published file, unless the next server on its port has replaced it already."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(file.read_text())["pid"] == launcher:
            file.unlink()


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def main(argv: list[str]) -> int:
    """Run the command under guard until it ends or the launcher goes."""
    folder, prefix, launcher = Path(argv[0]), argv[2], os.getppid()
    inherited: Inheritance = json.loads(sys.stdin.buffer.readline())
    # A service manager sends SIGTERM to every process, and what the server leaves is still to be cleaned then. Not
    # SIG_IGN, because the server would inherit it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # Logs and temporary files may hold what clients send.
    os.umask(0o077)
    _adopt_orphans()
    _raise_descriptor_limit()
    with Path(argv[1]).open("wb", buffering=0) as log:
        server = hidden_arguments.start(
            argv[3:],
            inherited["hidden"],
            environment=inherited["environment"],
            before=_die_with_guard,
            visible=lambda why: log.write(f"{VISIBLE} ({why}).\n".encode()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder / "work",
        )
    try:
        _wait_for_end(server, launcher, prefix)
    finally:
        _stop(server)
        _end_orphans()
        sweep(prefix)
        for file in inherited["files"]:
            withdraw(Path(file), launcher)
    if _launcher_gone(launcher):
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
