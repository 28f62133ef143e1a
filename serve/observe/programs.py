"""Prometheus and Alertmanager as processes that end with this one."""

import contextlib
import ctypes
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve.management import api
from serve.management.api import ServerError
from serve.resources import LOOPBACK, PortError, loopback_port
from triton_batching.terminal import Failure, Mistake

PR_SET_PDEATHSIG = 1
END_S = 10.0
LAST_LINES = 5


@dataclass(kw_only=True)
class Program:
    """A program with its command line, its log, and the address at which it says that it is ready."""

    name: str
    command: Sequence[str]
    log: Path
    address: str
    process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator["Program"]:
        """Run it inside the block."""
        with self.log.open("wb") as log:
            # In a session of its own, so that Ctrl-C reaches this process alone.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        try:
            yield self
        finally:
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            api.text(f"http://{self.address}/-/ready", timeout_s=1.0)
        except ServerError:
            return False
        return True

    def check(self, *, late: bool = False) -> None:
        """Raise `Failure` with the end of its log if it has ended, or if it is late."""
        code = self.process.poll() if self.process else None
        if code is None and not late:
            return
        how = "is not ready after its time to start" if code is None else f"ended with code {code}"
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise Failure("\n".join([f"{self.name} {how}. The last lines of its log:", *lines]))


def find(*names: str) -> str:
    """The path of the first program on PATH that has one of these names; raises `Mistake`."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise Mistake(f"{names[0]} is not installed. Run: apt-get install prometheus prometheus-alertmanager")


def free_port(port: int, taken: Sequence[int] = ()) -> int:
    """The port if it is free, or any free one for 0; raises `PortError`."""
    if not port:
        return loopback_port(taken)
    if port in taken:
        raise PortError(f"port {port} is given twice. Choose another for one of them; 0 takes any free one.")
    with contextlib.closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise PortError(
                f"port {port} cannot be used ({error.strerror}). Stop the program that uses it, or choose another."
            ) from error
    return port


def prometheus(binary: str, folder: Path, address: str) -> Program:
    """Prometheus with the configuration in the folder, where it also stores its data."""
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.size=1GB",
        f"--web.listen-address={address}",
    ]
    return Program(name="Prometheus", command=command, log=folder / "prometheus.log", address=address)


def alertmanager(binary: str, folder: Path, address: str) -> Program:
    """Alertmanager with the configuration in the folder; it talks to no others."""
    command = [
        binary,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alerts'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    return Program(name="Alertmanager", command=command, log=folder / "alertmanager.log", address=address)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
