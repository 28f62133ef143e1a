"""The Python processes of a server: Triton starts one for each instance of a Python model, and calls it a stub.

All that is known of them comes from /proc: Triton reports neither the processes nor their deaths.
"""

import compileall
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
STUB = "triton_python_backend_stub"
# The instance is called GROUP_NUMBER; the process that only completes the configuration is called as its model.
INSTANCE = re.compile(r".+_\d+")
# A process that Triton ended itself is waited for at once. One that died on its own while its model was loading is
# waited for when Triton finds out, after a second, or never.
UNNOTICED_S = 3.0
# Fields of /proc/PID/stat after the name in brackets.
STATE, PARENT, EXIT_CODE = 0, 1, 49


def instances(prefix: str) -> dict[int, str]:
    """The model of each living process of a model instance, by process id; `prefix` is the server's in /dev/shm."""
    found = {}
    for pid, arguments in _with_prefix(prefix):
        if _is_stub(arguments) and any(INSTANCE.fullmatch(one) and one != _model(arguments) for one in arguments[-3:]):
            found[pid] = _model(arguments)
    return found


def models(prefix: str) -> set[str]:
    """The models that have a living process of any kind, that which completes the configuration included."""
    return {_model(arguments) for _, arguments in _with_prefix(prefix) if _is_stub(arguments)}


def shared(pid: int) -> tuple[str, int] | None:
    """The file in /dev/shm through which the process talks to Triton, and where in it what both read begins."""
    try:
        arguments = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return arguments[2], int(arguments[7])
    except (OSError, IndexError, ValueError):
        return None


def servers(prefix: str) -> list[int]:
    """The processes that are neither stubs nor on their way to be one, and name `prefix`: a server, its guard."""
    return [pid for pid, arguments in _with_prefix(prefix) if not _is_stub(arguments) and arguments[0] != "bash"]


def kill(prefix: str) -> None:
    """End the processes with SIGKILL: one whose server died by force may hang in a lock and ignores SIGTERM."""
    for pid, arguments in _with_prefix(prefix):
        if _is_stub(arguments):
            _kill(pid)


def is_dead(pid: int) -> bool:
    """Whether the process died on its own: one that Triton ended itself is waited for, and not a zombie."""
    return _stat(pid)[STATE : STATE + 1] == ["Z"]


def compile_sources(model_folder: Path) -> None:
    """Write the bytecode that the model's processes would write when they import its files.

    Triton takes a file that appears in a model's folder for a change of the model. It then no longer gives new
    processes to the model that it has, but loads another one, and requests that wait stay with the old.
    """
    compileall.compile_dir(model_folder, quiet=2, maxlevels=3)


class Loading:
    """Watches the processes of a server that is starting for one that died."""

    def __init__(self, guard: int, prefix: str) -> None:
        self._guard = guard
        self._prefix = prefix
        self._models: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}
        self._deaths: dict[int, str] = {}

    def look(self) -> str | None:
        """A sentence about a process that died and that Triton still waits for, None without one; call it often."""
        self._models |= {pid: _model(arguments) for pid, arguments in _with_prefix(self._prefix) if _is_stub(arguments)}
        now = time.monotonic()
        for pid in _dead_grandchildren(self._guard):
            since = self._dead_since.setdefault(pid, now)
            self._deaths[pid] = f"the Python process of {self._named(pid)} {_end(pid)} while it was loading"
            if now - since > UNNOTICED_S:
                return self._deaths[pid]
        return None

    def deaths(self) -> list[str]:
        """A sentence about each death so far, whether Triton noticed it or not."""
        return list(dict.fromkeys(self._deaths.values()))

    def _named(self, pid: int) -> str:
        return f"'{self._models[pid]}'" if pid in self._models else "a model"


def _with_prefix(prefix: str) -> Iterator[tuple[int, list[str]]]:
    """This user's processes that name `prefix`, with their arguments: another user can name it as well."""
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                if folder.stat().st_uid != os.getuid():
                    continue
                arguments = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            except OSError:
                continue
            if any(prefix in one for one in arguments):
                yield int(folder.name), arguments


def _is_stub(arguments: list[str]) -> bool:
    return arguments[0].endswith(STUB) and len(arguments) > 2


def _model(arguments: list[str]) -> str:
    """The first argument is REPOSITORY/MODEL/VERSION/FILE; instances may be named otherwise than their model."""
    return Path(arguments[1]).parents[1].name


def _dead_grandchildren(guard: int) -> list[int]:
    parents = {int(folder.name): _stat(int(folder.name)) for folder in PROC.iterdir() if folder.name.isdecimal()}
    servers = {str(pid) for pid, stat in parents.items() if stat[PARENT : PARENT + 1] == [str(guard)]}
    return [pid for pid, stat in parents.items() if stat[STATE : STATE + 1] == ["Z"] and stat[PARENT] in servers]


def _end(pid: int) -> str:
    status = int((_stat(pid)[EXIT_CODE:] or ["0"])[0])
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with code {os.waitstatus_to_exitcode(status)}"


def _stat(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
