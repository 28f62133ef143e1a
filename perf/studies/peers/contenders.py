"""The servers that are compared, each on one core with the same model, batch limit and wait."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from export.graph.recipe import digest
from export.repository import REPOSITORY
from serve.launcher import Server, Settings, launch
from triton_batching.terminal import Failure

HERE = Path(__file__).parent
PEERS = ("mosec", "litserve")
# A virtual environment for each peer, with exactly the packages that its requirements file pins.
ENVIRONMENTS = Path("build/peers")
Process = subprocess.Popen[bytes]
MODEL = "ranker"
START_S = 60.0
CONFIG = """\
# {name} for the comparison with other servers: the same limit and wait as theirs, one thread, one instance.
name: "{name}"
backend: "onnxruntime"
max_batch_size: {max_batch_size}
input [ {{ name: "features" data_type: TYPE_FP32 dims: [ 2, 256 ] }} ]
output [ {{ name: "score" data_type: TYPE_FP32 dims: [ 2 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
dynamic_batching {{ {delay} }}
"""


@dataclass(frozen=True, kw_only=True)
class PeerLimits:
    """How every server batches: the most rows of a batch, and how long a request waits for others.

    mosec and LitServe begin to wait when a worker takes the first request of a batch. tritonserver begins when that
    request arrives, which is an execution earlier under load. So `queue_delay_us` is an execution plus `wait_us`. If
    the client merges calls, its requests are batches and the server adds no delay.
    """

    max_batch_size: int = 64
    wait_us: int = 10_000
    queue_delay_us: int = 100_000


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Run on one core; processes started meanwhile stay there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, kw_only=True)
class PeerServer:
    """A running server: its address, and its process group if it must be frozen between its turns."""

    url: str
    group: int | None = None

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the server run; before and after it is frozen, so that it takes no CPU time from the others."""
        if self.group is None:
            yield
            return
        os.killpg(self.group, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGSTOP)


@contextlib.contextmanager
def ours(
    model: Path, max_batch_size: int, delay_us: int, core: int, progress: Callable[[str], None] = lambda _: None
) -> Iterator[Server]:
    """tritonserver with this project's onnxruntime backend."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        version = Path(folder) / MODEL / "1"
        version.mkdir(parents=True)
        shutil.copy(model, version / "model.onnx")
        delay = f"max_queue_delay_microseconds: {delay_us}" if delay_us else ""
        text = CONFIG.format(name=MODEL, max_batch_size=max_batch_size, delay=delay)
        (version.parent / "config.pbtxt").write_text(text)
        with contextlib.ExitStack() as stack:
            with pinned(core):
                settings = Settings(models=(MODEL,), repository=Path(folder))
                server = stack.enter_context(launch(settings, progress=progress))
            yield server


@contextlib.contextmanager
def peer(
    name: str,
    model: Path,
    limits: PeerLimits,
    core: int,
    *,
    batches: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[PeerServer]:
    """mosec or LitServe in its own environment, frozen until its first turn.

    Unless it `batches`, each request is a batch by itself, as the client merged it.
    """
    python = environment(name, progress=progress)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), str(HERE / f"{name}_server.py")]
    if name == "mosec":
        command += ["--address", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--timeout", "60000"]
    variables = {
        "PEERS_MODEL": str(model),
        "PEERS_MAX_BATCH_SIZE": str(limits.max_batch_size if batches else 1),
        "PEERS_WAIT_US": str(limits.wait_us),
        "PEERS_PORT": str(port),
    }
    with tempfile.TemporaryFile() as log:
        progress(f"starting {name}")
        with pinned(core):
            process = _start(command, variables, log)
        try:
            _wait(name, process, port, log)
            os.killpg(process.pid, signal.SIGSTOP)
            yield PeerServer(url=f"127.0.0.1:{port}", group=process.pid)
        finally:
            _stop(process)


def _start(command: list[str], variables: Mapping[str, str], log: IO[bytes]) -> Process:
    """Start a process group, so that one signal reaches all processes of a peer."""
    environment = os.environ | dict(variables)
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def _wait(name: str, process: Process, port: int, log: IO[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)
    log.seek(0)
    raise Failure(f"{name} did not start; it printed:\n{log.read().decode(errors='replace')[-2000:]}")


def _stop(process: Process) -> None:
    """End the whole group, even if it is frozen."""
    for how in (signal.SIGTERM, signal.SIGCONT):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def model_file() -> Path:
    """The exported ranker."""
    return REPOSITORY / MODEL / "1" / "model.onnx"


def environment(peer: str, *, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The Python of the peer's environment, which is made if it is absent or has other pins; raises `Failure`."""
    requirements, folder = HERE / f"{peer}.txt", ENVIRONMENTS.resolve() / peer
    installed = folder / ".requirements"
    if installed.is_file() and installed.read_text() == digest(requirements):
        return folder / "bin" / "python"
    progress(f"installing {peer}")
    _run_or_fail(sys.executable, "-m", "venv", "--clear", str(folder))
    _run_or_fail(
        str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(requirements)
    )
    installed.write_text(digest(requirements))
    return folder / "bin" / "python"


def version(peer: str) -> str:
    """The pinned version of a peer."""
    pins = dict(line.split("==") for line in (HERE / f"{peer}.txt").read_text().split())
    return pins[peer]


def _run_or_fail(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise Failure(f"{' '.join(command)} failed:\n{result.stderr.strip()[-2000:]}")
