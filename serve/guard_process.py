"""The guard as its launcher sees it: how it ended, and its end by force.

Only SIGKILL ends a guard before its server, and only SIGSTOP or a hung machine keeps one from ending. What a guard
cleans is then cleaned here.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from serve import guard, stubs
from serve.management import admin

# What the guard does after its server has ended takes less.
END_S = guard.GRACE_S + 5.0
# The kernel sends the server of a killed guard SIGTERM, and it ends within --exit-timeout-secs.
SERVER_END_S = 15.0
POLL_S = 0.1


def stop(process: subprocess.Popen[bytes], prefix: str, ports: tuple[int, int, int]) -> None:
    """End the guard and its server: closing its input tells the guard to do it; by force if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    patience_s = SERVER_END_S
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        patience_s = 0.0
    if process.returncode < 0:
        _end_server(prefix, patience_s)
        stubs.kill(prefix)
        guard.sweep(prefix)
        for file in admin.files(ports[:2]):
            guard.withdraw(file, os.getpid())


def end(process: subprocess.Popen[bytes]) -> str:
    """How the server ended, once its guard has: with the server's code, or 128 and the number of its signal."""
    code = process.returncode
    if code < 0:
        return f"the guard of tritonserver was killed by {signal.Signals(-code).name}, which ends the server too"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"tritonserver was killed by {signal.Signals(code - 128).name}"
    return f"tritonserver ended with code {code}"


def _end_server(prefix: str, patience_s: float) -> None:
    """Wait until the server has left its ports, and kill it if it takes longer."""
    until = time.monotonic() + patience_s
    while (servers := _servers(prefix)) and time.monotonic() < until:
        time.sleep(POLL_S)
    for pid in servers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + SERVER_END_S
    while _servers(prefix) and time.monotonic() < until:
        time.sleep(POLL_S)


def _servers(prefix: str) -> list[int]:
    """Without a program of the user's that only names the prefix."""
    return [pid for pid in stubs.servers(prefix) if _name(pid) == "tritonserver"]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
