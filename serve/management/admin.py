"""Who may use a server's admin APIs: those that load models, register shared memory, and set traces and logs.

Whoever may load a model can run code as the server's user. HTTP knows no users, so without a secret every user of the
machine could do it, and every web page that one of them opens. Each start of a server therefore makes a secret. The
server wants it in a header, and the launcher writes it to files that only its own user can read, one for each port.
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
# Triton puts "triton-grpc-protocol-" in front of the key that is given for gRPC, so that one name serves both.
GRPC_KEY = "admin"
HEADER = f"triton-grpc-protocol-{GRPC_KEY}"
NAME = "localhost"
# The addresses of this machine that reach a server which listens on the address before them.
LOOPBACK = {
    "127.0.0.1": ("127.0.0.1", NAME),
    NAME: ("127.0.0.1", NAME),
    "0.0.0.0": ("127.0.0.1", NAME),
    "::1": ("::1", NAME),
    "::": ("127.0.0.1", "::1", NAME),
}
# Of /proc/net/tcp6: the columns, and the states of a socket that somebody has.
ADDRESS, STATE, USER = 1, 3, 7
IN_USE = ("01", "0A")


class FolderError(Mistake):
    """No folder in which only this user can read."""


def flags(secret: str) -> dict[str, str]:
    """tritonserver's flags that restrict the admin APIs, by the name under which they are hidden."""
    apis = ",".join(APIS)
    return {
        "TRITON_BATCHING_HTTP_RESTRICTED_API": f"--http-restricted-api={apis}:{HEADER}={secret}",
        "TRITON_BATCHING_GRPC_RESTRICTED_PROTOCOL": f"--grpc-restricted-protocol={apis}:{GRPC_KEY}={secret}",
    }


def make_secret() -> str:
    """256 bits as text."""
    return secrets.token_hex(32)


def publish(secret: str, host: str, ports: Sequence[int]) -> list[Path]:
    """Write the secret of a server that listens on `host` and these ports; the files, to be removed with the server.

    Raises `FolderError` where no folder is safe.
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
    """Where `publish` may have written the secret of these ports, which can be another server's by now."""
    return [folder / f"{port}.json" for folder in _folders() for port in ports]


def headers(url: str) -> dict[str, str]:
    """What a request to the admin APIs of the server at `url` (host:port, or a whole URL) has to carry.

    Nothing where no server of this user and this machine has that address, or another user may have it.
    """
    try:
        address = urlsplit(url if "//" in url else f"//{url}")
        host, port = address.hostname, address.port
    except ValueError:
        return {}
    for folder in _folders():
        found = _read(folder / f"{port}.json")
        if found and host in (found["host"], *LOOPBACK.get(found["host"], ())):
            return {} if host == NAME and port and _has_stranger(port) else {HEADER: found["secret"]}
    return {}


def _has_stranger(port: int) -> bool:
    """Whether another user has the port on IPv6: clients try ::1 first for `localhost`, so they would tell the secret.

    A connection that another user has accepted counts too, as that user may have closed the listening socket since.
    Root can read the secret anyway, and the kernel says root of connections that nobody has accepted yet.
    """
    try:
        lines = Path("/proc/net/tcp6").read_text().splitlines()[1:]
    except OSError:
        return False
    found = [line.split() for line in lines]
    return any(
        one[ADDRESS].endswith(f":{port:04X}") and one[STATE] in IN_USE and int(one[USER]) not in (0, os.getuid())
        for one in found
    )


def _folders() -> Iterator[Path]:
    """Where secrets are; the same for every process of a user, whatever its environment says of temporary folders."""
    user = os.getuid()
    yield Path(f"/run/user/{user}/triton-batching")
    yield Path(f"/tmp/.triton-batching-{user}")  # another user may have made it first, hence _is_private


def _forget_the_dead(folder: Path) -> None:
    """Remove the files of launchers that were killed together with their guards."""
    for path in folder.glob("*.json"):
        found = _read(path)
        if found and not Path(f"/proc/{found['pid']}").exists():
            path.unlink(missing_ok=True)


def _write(path: Path, content: Mapping[str, str | int]) -> Path:
    """Whole or not at all, and readable by this user only from the first byte on."""
    descriptor, made = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    return Path(made).replace(path)


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        # Without waiting: in a folder that another user made first, this may be a pipe that nobody writes to.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return json.load(file) if _is_private(os.fstat(file.fileno())) else None
    except (OSError, ValueError):
        return None


def _is_private(found: os.stat_result) -> bool:
    """Whether it is this user's own, and nobody else may even read it."""
    return found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o077
