"""The watchdog between a launcher and its tritonserver: `python guard.py FOLDER LOG PREFIX COMMAND...`.

It owns the server process. When its standard input closes, because the launcher says stop or because the launcher
died in whatever way, it stops the server (SIGINT, wait, SIGKILL) and removes what the server leaves in /dev/shm.
FOLDER is removed too when the launcher is gone. The exit code is the server's. It imports nothing of the project, so
that it runs by its path from anywhere.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

GRACE_S = 12.0
POLL_S = 0.1
PR_SET_PDEATHSIG = 1
SHARED_MEMORY = Path("/dev/shm")


def sweep(prefix: str) -> None:
    """Remove every shared-memory file whose name starts with `prefix`."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)


def _die_with_guard() -> None:
    # The last resort, for a guard that is itself killed with SIGKILL: the kernel then sends the server SIGTERM.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _launcher_gone(launcher: int) -> bool:
    return os.getppid() != launcher


def _wait_for_end(server: subprocess.Popen[bytes], launcher: int) -> None:
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable or _launcher_gone(launcher):
            return


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
    with Path(argv[1]).open("wb") as log:
        server = subprocess.Popen(
            argv[3:],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder / "work",
            preexec_fn=_die_with_guard,
        )
    try:
        _wait_for_end(server, launcher)
    finally:
        _stop(server)
        sweep(prefix)
    if _launcher_gone(launcher):
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
