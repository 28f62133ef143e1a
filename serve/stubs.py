"""The Python processes of a server: Triton starts one for each instance of a Python model, and calls it a stub.

Triton reports neither these processes nor their deaths, so they are found by their command lines.
"""

import compileall
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from triton_batching import processes

STUB = "triton_python_backend_stub"
# The instance is called GROUP_NUMBER; the process that only completes the configuration is called as its model.
INSTANCE = re.compile(r".+_\d+")
# Triton waits at once for a process that it ended itself. For one that died while its model was loading, Triton waits
# when it notices the death: after a second, or never.
UNNOTICED_S = 3.0


def instances(prefix: str) -> dict[int, str]:
    """The model of each living process of a model instance, by process id; `prefix` is the server's in /dev/shm."""
    return instances_and_models(prefix)[0]


def instances_and_models(prefix: str) -> tuple[dict[int, str], set[str]]:
    """As `instances`, and the models that have a living process of any kind.

    The second holds models whose only process completes the configuration, too.
    """
    stubs = dict(_stubs(prefix))
    instances = {
        pid: _model(arguments)
        for pid, arguments in stubs.items()
        if any(INSTANCE.fullmatch(argument) and argument != _model(arguments) for argument in arguments[-3:])
    }
    return instances, {_model(arguments) for arguments in stubs.values()}


def model_of(arguments: list[str]) -> str | None:
    """The model that the process with this command line runs; None if it is no stub."""
    return _model(arguments) if _is_stub(arguments) else None


def control_block(pid: int) -> tuple[str, int] | None:
    """The file in /dev/shm that the process shares with Triton, and the offset of their control block in it."""
    try:
        arguments = processes.arguments(pid)
        return arguments[2], int(arguments[7])
    except (IndexError, ValueError):
        return None


def servers(prefix: str) -> list[int]:
    """The processes with `prefix` on their command line that are no stubs: a server and its guard.

    Triton starts a stub through bash, which is left out as well.
    """
    return [
        pid for pid, arguments in processes.with_argument(prefix) if not _is_stub(arguments) and arguments[0] != "bash"
    ]


def kill(prefix: str) -> None:
    """End the stubs with SIGKILL: a stub whose server was killed may hang in a lock, and ignores SIGTERM."""
    for pid, _ in _stubs(prefix):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def compile_sources(model_folder: Path) -> None:
    """Write the bytecode that the model's processes would write when they import its files.

    Triton takes a new file in a model's folder for a change of the model. A reload would then load a second model
    instead of new processes for the same one, and waiting requests would stay with the first.
    """
    compileall.compile_dir(model_folder, quiet=2, maxlevels=3)


class Loading:
    """Watches the stubs of a server that is starting, for one that died."""

    def __init__(self, guard: int) -> None:
        self._guard = guard
        self._models: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}
        self._failures: dict[int, str] = {}

    def look(self) -> str | None:
        """A sentence about a process that died and that Triton still waits for; None without one. Call it often."""
        now = time.monotonic()
        for server in processes.children(self._guard):
            for pid in processes.children(server):
                if _is_stub(arguments := processes.arguments(pid)):
                    self._models[pid] = _model(arguments)
                elif processes.is_zombie(pid):
                    since = self._dead_since.setdefault(pid, now)
                    status = processes.wait_status(pid)
                    death = f"the Python process of {self._named(pid)} {_end(status)} while it was loading"
                    if status != 0:
                        self._failures[pid] = death
                    if now - since > UNNOTICED_S:
                        return death
        return None

    def failures(self) -> list[str]:
        """A sentence about each process that failed so far, whether Triton noticed it or not.

        One that ended with code 0 did what Triton asked of it, after its model had failed: the log has the reason.
        """
        return list(dict.fromkeys(self._failures.values()))

    def _named(self, pid: int) -> str:
        return f"'{self._models[pid]}'" if pid in self._models else "a model"


def _stubs(prefix: str) -> Iterator[tuple[int, list[str]]]:
    return ((pid, arguments) for pid, arguments in processes.with_argument(prefix) if _is_stub(arguments))


def _is_stub(arguments: list[str]) -> bool:
    return len(arguments) > 2 and arguments[0].endswith(STUB)


def _model(arguments: list[str]) -> str:
    """The first argument is REPOSITORY/MODEL/VERSION/FILE; the name of an instance need not contain its model's."""
    return Path(arguments[1]).parents[1].name


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with code {os.waitstatus_to_exitcode(status)}"
