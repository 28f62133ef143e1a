"""The secret of a server's admin APIs, which load models, register shared memory, and set traces and logs.

Whoever may load a model can run code as the server's user. HTTP has no users, so without a secret every user of the
machine could do it, and every web page that one of them opens. So each start of a server makes a secret. The server
asks for it in a header, and the launcher writes it to files that only its own user can read, one for each port.
"""

import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from triton_batching.terminal import Mistake

APIS = ("model-repository", "shared-memory", "trace", "logging")
# Triton puts "triton-grpc-protocol-" before the key for gRPC. With that prefix the header has the same name for HTTP.
GRPC_KEY = "admin"
HEADER = f"triton-grpc-protocol-{GRPC_KEY}"
NAME = "localhost"
# By the address on which a server listens: the addresses of this machine that reach it.
LOOPBACK = {
    "127.0.0.1": ("127.0.0.1", NAME),
    NAME: ("127.0.0.1", NAME),
    "0.0.0.0": ("127.0.0.1", NAME),
    "::1": ("::1", NAME),
    "::": ("127.0.0.1", "::1", NAME),
}
# Columns of /proc/net/tcp6, and the states of an established and of a listening socket.
ADDRESS, STATE, USER = 1, 3, 7
IN_USE = ("01", "0A")


class FolderError(Mistake):
    """There is no folder that only this user can read."""


def flags(secret: str) -> dict[str, str]:
    """tritonserver's flags that restrict the admin APIs, by the variable that hides each (see hidden_arguments)."""
    apis = ",".join(APIS)
    return {
        "TRITON_BATCHING_HTTP_RESTRICTED_API": f"--http-restricted-api={apis}:{HEADER}={secret}",
        "TRITON_BATCHING_GRPC_RESTRICTED_PROTOCOL": f"--grpc-restricted-protocol={apis}:{GRPC_KEY}={secret}",
    }


def make_secret() -> str:
    """A new secret: 256 random bits as text."""
    return secrets.token_hex(32)


def publish(secret: str, host: str, ports: Sequence[int]) -> list[Path]:
    """Write the secret of a server that listens on `host` and `ports` to files, and return their paths.

    The files must be removed with the server. Raises `FolderError` if no folder is safe.
    """
    content: Mapping[str, str | int] = {"host": host, "secret": secret, "pid": os.getpid()}
    unsafe = []
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_private(folder.lstat()):
                _forget_the_dead(folder)
                return [_write(folder / f"{port}.json", content) for port in ports]
            unsafe.append(f"{folder} is another user's, a link, or open to others")
        except OSError as error:
            unsafe.append(f"{folder}: {error.strerror}")
    raise FolderError(
        f"the secret of the server's admin APIs cannot be kept anywhere ({'; '.join(unsafe)}). Make one of these a "
        "folder of your own with mode 700, or let everybody load models with --open-admin."
    )


def files(ports: Sequence[int]) -> list[Path]:
    """The files in which `publish` may have written the secret for these ports; they may be another server's by now."""
    return [folder / f"{port}.json" for folder in _folders() for port in ports]


def headers(url: str) -> dict[str, str]:
    """The headers of a call to the admin APIs of the server at `url` (host:port, or a whole URL).

    Empty if no server of this user on this machine has that address, or if another user may have it.
    """
    try:
        address = urlsplit(url if "//" in url else f"//{url}")
        host, port = address.hostname, address.port
    except ValueError:
        return {}
    for folder in _folders():
        content = _read(folder / f"{port}.json")
        if content and host in (content["host"], *LOOPBACK.get(content["host"], ())):
            return {} if host == NAME and port and _has_stranger(port) else {HEADER: content["secret"]}
    return {}


def _has_stranger(port: int) -> bool:
    """Whether another user has the port on IPv6: for `localhost` clients try ::1 first, and would send the secret.

    A connection that another user has accepted counts too, because that user may have closed the listening socket
    since. Sockets of root do not count: root can read the secret anyway, and the kernel gives connections that nobody
    has accepted yet to root.
    """
    try:
        lines = Path("/proc/net/tcp6").read_text().splitlines()[1:]
    except OSError:
        return False
    sockets = [line.split() for line in lines]
    return any(
        entry[ADDRESS].endswith(f":{port:04X}") and entry[STATE] in IN_USE and int(entry[USER]) not in (0, os.getuid())
        for entry in sockets
    )


def _folders() -> Iterator[Path]:
    """The folders for secrets; the same for every process of a user, whatever its environment."""
    user = os.getuid()
    yield Path(f"/run/user/{user}/triton-batching")
    yield Path(f"/tmp/.triton-batching-{user}")  # another user may have made it: _is_private checks


def _forget_the_dead(folder: Path) -> None:
    """Remove the files of launchers that were killed together with their guards."""
    for path in folder.glob("*.json"):
        content = _read(path)
        if content and not _exists(content["pid"]):
            path.unlink(missing_ok=True)


def _exists(pid: int) -> bool:
    # Not psutil: the doctor imports this module and is installed without it.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _write(path: Path, content: Mapping[str, str | int]) -> Path:
    """Write the file as a whole; no other user can read it at any moment."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    return Path(draft).replace(path)


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        # Non-blocking: in a folder that another user made, this may be a pipe that nobody writes to.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return json.load(file) if _is_private(os.fstat(file.fileno())) else None
    except (OSError, ValueError):
        return None


def _is_private(status: os.stat_result) -> bool:
    """Whether the file or folder is this user's own, and nobody else may read it."""
    return status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o077
