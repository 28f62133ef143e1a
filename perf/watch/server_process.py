"""The processes of a server on this machine: tritonserver, and one for each instance of a Python model."""

from dataclasses import dataclass

from perf.load.address import HERE
from serve import stubs
from serve.management import gpu_use
from triton_batching import processes

SERVER = "tritonserver"


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process with its CPU seconds so far and the memory that it does not share.

    `owner` is the model whose instance runs in it, or "tritonserver". A `dead` one has ended, and its parent has not
    noticed. `gpu_bytes` is its memory on all GPUs, None if that is not known.
    """

    pid: int
    owner: str
    cpu_s: float = 0.0
    memory_bytes: int = 0
    gpu_bytes: float | None = None
    dead: bool = False


class ServerProcesses:
    """The processes of the server that listens on the port of `url` (host:port); none if that is another machine."""

    def __init__(self, url: str) -> None:
        host, _, port = url.rpartition(":")
        self._port = int(port) if host in HERE else None
        self._server: int | None = None
        self._owners: dict[int, str] = {}

    def read(self, *, asks_driver: bool = False) -> tuple[Process, ...]:
        """The processes now, the server first; empty if it is not one of this user's."""
        if self._port is None:
            return ()
        if self._server is None or not processes.is_running(self._server):
            self._server = self._listener(self._port)
        if self._server is None:
            return ()
        on_gpu = gpu_use.by_process() if asks_driver else {}
        pids = processes.tree(self._server)
        self._owners = {pid: owner for pid in pids if (owner := self._owners.get(pid) or _owner(pid))}
        return tuple(_process(pid, owner, on_gpu.get(pid)) for pid, owner in self._owners.items())

    def _listener(self, port: int) -> int | None:
        """The server's process; a front door that listens there is none."""
        pid = processes.listener(port)
        return pid if pid is not None and processes.name(pid) == SERVER else None


def _owner(pid: int) -> str:
    """The model or the server that a process works for; "" for a shell that starts one, and for a dead process."""
    if model := stubs.model_of(processes.arguments(pid)):
        return model
    return SERVER if processes.name(pid) == SERVER and not processes.is_zombie(pid) else ""


def _process(pid: int, owner: str, gpu_bytes: float | None) -> Process:
    usage = processes.own_usage(pid)
    if usage is None:
        return Process(pid=pid, owner=owner, dead=True)
    return Process(pid=pid, owner=owner, cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes, gpu_bytes=gpu_bytes)
