"""The launcher's view of its guard: how it ended, and how to end it by force.

Only SIGKILL ends a guard before its server, and only SIGSTOP or a hung machine keeps a guard from ending. In these
cases the launcher does the guard's cleaning.
"""

import contextlib
import os
import signal
import subprocess
import time

from serve import guard, stubs
from serve.management import admin
from triton_batching import processes

# The guard cleans up for less than 5 s after its server has ended.
END_S = guard.GRACE_S + 5.0
# The kernel sends the server of a killed guard SIGTERM, and it ends within --exit-timeout-secs.
SERVER_END_S = 15.0
POLL_S = 0.1


def stop(process: subprocess.Popen[bytes], prefix: str, ports: tuple[int, int, int]) -> None:
    """End the guard and its server by closing the guard's input, or by force if it does not end."""
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


def server_pid(guard_pid: int) -> int:
    """The process of the tritonserver below its guard; 0 if it has ended."""
    return next((pid for pid in processes.children(guard_pid) if processes.name(pid) == "tritonserver"), 0)


def end(process: subprocess.Popen[bytes], server: str = "tritonserver") -> str:
    """A sentence about how the program called `server` ended; its guard must have ended.

    The guard's exit code is the server's, or 128 plus the number of the signal that killed the server.
    """
    code = process.returncode
    if code < 0:
        return f"the guard of {server} was killed by {signal.Signals(-code).name}, which ends the server too"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"{server} was killed by {signal.Signals(code - 128).name}"
    return f"{server} ended with code {code}"


def _end_server(prefix: str, patience_s: float) -> None:
    """Wait until the server has ended and its ports are free, and kill it after `patience_s`."""
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
    """The server's process, without other programs of the user that have the prefix on their command line."""
    return [pid for pid in stubs.servers(prefix) if processes.name(pid) == "tritonserver"]
