"""The process of the proxy: it is started again when it ends, and never outlives this program."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from serve import guard, guard_process, server_folder
from serve.server_folder import ServerFolder
from triton_batching import processes
from triton_batching.terminal import Failure

POLL_S = 0.05
START_S = 30.0
# How often a proxy is asked whether it answers, and how long it has for that. One that does not so often hangs.
ASK_S = 1.0
MOST_SILENT, MOST_SILENT_AT_START = 5, 30
# A proxy whose start fails again and again waits this long in between.
MOST_WAIT_S = 5.0
TAIL_LINES = 5
# A socket's path has 107 characters at most (unix(7)), with the socket's name.
LONGEST = 80


class ProxyError(Failure):
    """The proxy did not start, or did not do as told; the text ends with the last lines of its log."""


class Process:
    """A proxy under a guard (serve.guard), which ends it when this program dies.

    command: with absolute paths. is_up: whether the proxy answers; takes `ASK_S` at most. report: gets a sentence about
        each end, and when the proxy answers again.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: ServerFolder,
        *,
        is_up: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.restarts = 0
        self._command, self._folder, self._log = command, folder, folder.path / "proxy.log"
        self._is_up, self._report = is_up, report
        self._closing = threading.Event()
        self._asks_at, self._silent, self._most_silent = 0.0, 0, MOST_SILENT
        self._guard = self._started()
        self._keeper = threading.Thread(target=self._keep, name="front door", daemon=True)

    @property
    def name(self) -> str:
        """The proxy's name, as in its command."""
        return Path(self._command[0]).name

    def pids(self) -> list[int]:
        """The guard, and below it the proxy."""
        return processes.tree(self._guard.pid)

    def begin(self) -> None:
        """Wait until the proxy listens, and keep it alive from then on; raises `ProxyError`."""
        end = time.monotonic() + START_S
        while not self._is_up():
            if self._guard.poll() is not None:
                raise ProxyError(f"{self.name} ended with code {self._guard.returncode}.\n{self.log_tail()}")
            if time.monotonic() > end:
                raise ProxyError(f"{self.name} did not listen after {START_S:g} s.\n{self.log_tail()}")
            time.sleep(POLL_S)
        self._keeper.start()

    def close(self) -> None:
        """End the proxy and its guard."""
        self._closing.set()
        if self._keeper.ident:
            self._keeper.join()
        guard_process.stop(self._guard, self._folder.prefix, (0, 0, 0))
        self._end_proxy()

    def log_tail(self) -> str:
        """The last lines of the proxy's log."""
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            return "\n".join(f"  {line}" for line in lines)
        return ""

    def _started(self) -> subprocess.Popen[bytes]:
        inherited = guard.Inheritance(environment=dict(os.environ), hidden={}, files=[], ends_with_stubs=False)
        (self._folder.path / "work").mkdir(exist_ok=True)
        arguments = [str(self._folder.path), str(self._log), self._folder.prefix, *self._command]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", guard.__name__, *arguments],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[self._folder.lock],
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(inherited).encode() + b"\n")
        process.stdin.flush()
        return process

    def _keep(self) -> None:
        wait_s = away_at = 0.0
        started = time.monotonic()
        while not self._closing.wait(POLL_S):
            if self._guard.poll() is None:
                if away_at and self._is_up():
                    self._report(f"the front door is open again, after {time.monotonic() - away_at:.1f} s")
                    away_at = 0.0
                self._end_if_hung()
                continue
            away_at = away_at or time.monotonic()
            # One that served for a while is started again at once.
            wait_s = 0.0 if time.monotonic() - started > MOST_WAIT_S else min(max(2 * wait_s, 0.25), MOST_WAIT_S)
            how = guard_process.end(self._guard, self.name)
            self._report(f"the front door is closed: {how}; it is started again. {self.log_tail()}".rstrip())
            if self._closing.wait(wait_s):
                return
            self._end_proxy()
            self.restarts += 1
            with contextlib.suppress(OSError):
                self._log.replace(self._log.with_suffix(f".old{self._log.suffix}"))
            started = time.monotonic()
            self._silent, self._most_silent = 0, MOST_SILENT_AT_START
            try:
                self._guard = self._started()
            except OSError as error:  # the machine has no memory or no process left
                self._report(f"the front door's {self.name} cannot be started ({error}); it is tried again")

    def _end_if_hung(self) -> None:
        """Ask the proxy whether it answers, and kill one that hangs; then its guard ends, too."""
        if time.monotonic() < self._asks_at:
            return
        self._asks_at = time.monotonic() + ASK_S
        if self._is_up():
            self._silent, self._most_silent = 0, MOST_SILENT
            return
        self._silent += 1
        if self._silent == self._most_silent:
            self._report(f"the front door's {self.name} has not answered for {self._silent * ASK_S:g} s; it is killed")
            self._kill(self._proxies())

    def _end_proxy(self) -> None:
        """Wait for the end of a proxy whose guard was killed; the kernel has sent it SIGTERM."""
        end = time.monotonic() + guard_process.END_S
        while (left := self._proxies()) and time.monotonic() < end:
            time.sleep(POLL_S)
        self._kill(left)

    def _kill(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def _proxies(self) -> list[int]:
        folder = f"{self._folder.path}/"
        return [pid for pid, command in processes.with_argument(folder) if command[0] == self._command[0]]


@contextlib.contextmanager
def running(
    command: Callable[[ServerFolder], Sequence[str]],
    *,
    is_up: Callable[[ServerFolder], bool],
    report: Callable[[str], None],
) -> Iterator[Process]:
    """Start a proxy in a folder of its own, yield it when it listens, and end it at the end.

    `command` writes the proxy's files to the folder and says how to start it.
    """
    with server_folder.create(longest=LONGEST) as folder:
        process = Process(command(folder), folder, is_up=lambda: is_up(folder), report=report)
        try:
            process.begin()
            yield process
        finally:
            process.close()


def write_private(path: Path, text: str) -> None:
    """Write the file as a whole, so that no other user can read it at any moment: it may hold tokens."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
