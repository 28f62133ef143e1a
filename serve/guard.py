"""The watchdog between a launcher and its tritonserver: `python -m serve.guard FOLDER LOG PREFIX COMMAND...`.

It starts the server. The first line of its standard input is an `Inheritance` as JSON. Its standard input closes when
the launcher wants the server to stop, and when the launcher dies. Then the guard stops the server: SIGINT, wait,
SIGKILL. After any end of the server it kills the server's remaining processes and removes the server's files in
/dev/shm. If the launcher is gone, it also removes FOLDER. Its exit code is the server's.
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
from triton_batching import processes

GRACE_S = 12.0
POLL_S, STOP_POLL_S = 0.1, 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHARED_MEMORY = Path("/dev/shm")
# More would only cost memory: a server takes one descriptor for each connection.
MOST_DESCRIPTORS = 65_536
VISIBLE = "triton-batching: the secret of the admin APIs is on the server's command line, which other users can read"


class Inheritance(TypedDict):
    """What the guard gets through a pipe, because every user of the machine can read a command line.

    `environment` is the server's. `hidden` holds the real values of those arguments of COMMAND that are its keys.
    `files` are those of `admin.publish`, which are removed with the server. `ends_with_stubs` is whether the server
    has nothing left to do once its Python processes have ended.
    """

    environment: dict[str, str]
    hidden: dict[str, str]
    files: list[str]
    ends_with_stubs: bool


def sweep(prefix: str) -> None:
    """Remove every shared-memory file of this user whose name starts with `prefix`."""
    for path, _ in _files(prefix):
        path.unlink(missing_ok=True)


def _files(prefix: str) -> Iterator[tuple[Path, int]]:
    """This user's shared-memory files and their modes: other users can make files and links with the same prefix."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode):
                yield path, stat.S_IMODE(status.st_mode)


def _die_with_guard() -> None:
    # If the guard is killed with SIGKILL, the kernel sends the server SIGTERM.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _adopt_orphans() -> None:
    """Become the parent of the processes that the server leaves behind, in place of the system's first process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _end_orphans() -> None:
    """Kill the server's remaining processes; one whose server was killed may hang in a lock and ignores SIGTERM.

    Their own children become children of this process in turn. The kernel gives no process id to another process
    before it was waited for.
    """
    end = time.monotonic() + GRACE_S
    while (orphans := processes.children(os.getpid())) and time.monotonic() < end:
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
    """Make the server's shared memory private, because Triton ignores the umask.

    This is early enough: no request is in a file before its model is ready.
    """
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


def _stop(server: subprocess.Popen[bytes], *, ends_with_stubs: bool) -> None:
    """Let the server answer the requests in flight and unload its models, then end it.

    Triton looks once in a second whether its models are unloaded, and takes 0.6 s more to end. So a server whose models
    all run in stubs is killed as soon as the stubs have ended, because then the last model is unloaded. It is not
    killed while a client is connected, which may still be reading an answer.
    """
    if server.poll() is not None:
        return
    ends_with_stubs = ends_with_stubs and bool(processes.children(server.pid))
    server.send_signal(signal.SIGINT)
    end = time.monotonic() + GRACE_S
    while server.poll() is None and time.monotonic() < end:
        if ends_with_stubs and not processes.children(server.pid) and not processes.is_connected(server.pid):
            break
        time.sleep(STOP_POLL_S)
    server.kill()
    server.wait()


def main(argv: list[str]) -> int:
    """Run the command until it ends, or until the launcher closes the pipe or dies; the command's exit code."""
    folder, prefix, launcher = Path(argv[0]), argv[2], os.getppid()
    inherited: Inheritance = json.loads(sys.stdin.buffer.readline())
    # A service manager sends SIGTERM to every process, and the guard still has to clean up then. SIG_IGN would be
    # inherited by the server.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # Logs and temporary files may contain requests.
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
        _stop(server, ends_with_stubs=inherited["ends_with_stubs"])
        _end_orphans()
        sweep(prefix)
        for file in inherited["files"]:
            withdraw(Path(file), launcher)
    if _launcher_gone(launcher):
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
