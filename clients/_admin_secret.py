"""The secret that a server of `python -m serve` wants with calls that register shared memory.

The launcher makes a new secret at each start and writes it to PORT.json in a folder of its own user: an object with the
keys `host`, `secret` and `pid`. The writing half, and the reasons, are in serve/management/admin.py.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HEADER = "triton-grpc-protocol-admin"
LOCALHOST = "localhost"
# The addresses of this machine that reach a server which listens on the address before them.
LOOPBACK = {
    "127.0.0.1": ("127.0.0.1", LOCALHOST),
    LOCALHOST: ("127.0.0.1", LOCALHOST),
    "0.0.0.0": ("127.0.0.1", LOCALHOST),
    "::1": ("::1", LOCALHOST),
    "::": ("127.0.0.1", "::1", LOCALHOST),
}
# Columns of /proc/net/tcp6, and the states of a socket in use: established and listening.
ADDRESS, STATE, USER = 1, 3, 7
IN_USE = ("01", "0A")


def headers(url: str) -> dict[str, str]:
    """The header with the secret for the server at `url` (host:port).

    Empty if no server of this user on this machine has that address, or if another user may have it.
    """
    try:
        address = urlsplit(f"//{url}")
        host, port = address.hostname, address.port
    except ValueError:
        return {}
    for folder in _folders():
        content = _read(folder / f"{port}.json")
        if content and host in (content["host"], *LOOPBACK.get(content["host"], ())):
            return {} if host == LOCALHOST and port and _has_stranger(port) else {HEADER: content["secret"]}
    return {}


def _has_stranger(port: int) -> bool:
    """Whether another user has the port on IPv6: clients try ::1 first for `localhost` and would send the secret there.

    Connections that another user has accepted count too, since that user may have closed the listening socket.
    Root does not count: it can read the secret anyway, and the kernel names root for connections not yet accepted.
    """
    try:
        lines = Path("/proc/net/tcp6").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(
        fields[ADDRESS].endswith(f":{port:04X}")
        and fields[STATE] in IN_USE
        and int(fields[USER]) not in (0, os.getuid())
        for fields in map(str.split, lines)
    )


def _folders() -> Iterator[Path]:
    """Where secrets are; the same for every process of a user, whatever its environment says of temporary folders."""
    user = os.getuid()
    yield Path(f"/run/user/{user}/triton-batching")
    yield Path(f"/tmp/.triton-batching-{user}")  # another user may have made it first, hence the check of the owner


def _read(path: Path) -> Mapping[str, Any] | None:
    """The content of the file; None unless it is readable, this user's own, and private."""
    try:
        # O_NONBLOCK: in a folder that another user made, this may be a pipe that nobody writes to.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
            return json.load(file) if private else None
    except (OSError, ValueError):
        return None
