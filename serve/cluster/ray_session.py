"""This program's connection to Ray, which it starts itself if none is named."""

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve import server_folder
from triton_batching import processes
from triton_batching.terminal import Failure, Mistake

# The actors need no shared objects; this is about the least that Ray takes.
OBJECT_STORE_BYTES = 80_000_000
LOOPBACK = "127.0.0.1"
ADDRESS = "RAY_ADDRESS"
# Variables of the environment that Ray reads when it is imported or started.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # What Ray prints of its processes in this program, without the lines that contain this pattern.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
# Ray's servers listen on every address, unless it is for one machine only; this variable says that on Linux, too.
ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
TOKEN = "RAY_AUTH_TOKEN"
# The beginning of the names of Ray's processes in Python.
HELPER = "ray::"
# A socket of Ray has the name of its folder and this many characters more; Linux takes 107.
SOCKET, MOST_SOCKET = 64, 107
MISSING = (
    "--engine ray: ray is not installed in this environment. Run: pip install 'triton-batching[ray]', or use "
    "--engine local."
)


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connect to the Ray at `address` ("auto": of this machine) or in RAY_ADDRESS; without both, start one.

    A Ray that is started here is for this machine alone, listens on loopback, and ends with the connection. Raises
    `Mistake` if ray is not installed or does not answer, `Failure` if it cannot be started.
    """
    if importlib.util.find_spec("ray") is None:
        raise Mistake(MISSING)
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    address = address or os.environ.get(ADDRESS)
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = _folder(stack)
            stack.callback(_end)
            with _variables(ONE_MACHINE | {TOKEN: secrets.token_hex(32)}):
                _start(folder)
        else:
            stack.callback(_disconnect)
            _connect(address)
        yield


def _start(folder: Path) -> None:
    try:
        _init(
            "local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(folder),
        )
    except Exception as error:
        raise Failure(f"Ray cannot be started: {_first_line(error)}") from error


def _connect(address: str) -> None:
    try:
        _init(address)
    except Exception as error:
        raise Mistake(
            f"no Ray answers at {address}: {_first_line(error)} Start one with ray start --head, or leave the address "
            f"and {ADDRESS} out to start one for this machine."
        ) from error


def _init(address: str, **options: Any) -> None:
    """Connect without messages, and keep this program's own handler of SIGTERM."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _disconnect() -> None:
    """Disconnect, which ends a Ray that this program has started."""
    if ray := sys.modules.get("ray"):  # else its import failed or was interrupted
        ray.shutdown()


def _end() -> None:
    """End this program's Ray. It kills its server if that takes more than a second, and forgets its helpers then."""
    helpers = [pid for pid in processes.tree(os.getpid()) if _is_helper(pid)]
    _disconnect()
    for pid in filter(_is_helper, helpers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_helper(pid: int) -> bool:
    return "".join(processes.arguments(pid)).startswith(HELPER)


def _first_line(error: Exception) -> str:
    return f"{str(error).strip().partition(chr(10))[0].rstrip('.')}."


def _folder(stack: contextlib.ExitStack) -> Path:
    """A folder for Ray's logs and sockets; if this program is killed, the next start of a server removes it."""
    with contextlib.ExitStack() as attempt:
        folder = attempt.enter_context(server_folder.create()).path
        if len(str(folder)) + SOCKET <= MOST_SOCKET:
            stack.push(attempt.pop_all())
            return folder
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-batching-", dir="/tmp")))


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
