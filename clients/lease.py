"""A client's hold on its shared memory: when the process ends, however it ends, the server lets go of it too.

Nothing of a killed process runs any more, so another one, the reaper, holds a socket to it and does the work when that
closes. There is one reaper per server and user; whoever binds its abstract socket first starts it. Anybody may bind or
connect to such a name, so each side checks that the other is a process of the same user.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import weakref

from . import reaper
from .endpoint import Endpoint

START_S = 10.0


class Lease:
    """The regions that this process holds on one server. Raises `OSError` when no reaper can be had."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._socket, self._told = _connect(endpoint.target), b""
        _OPEN.add(self)

    def hold(self, region: str) -> None:
        """Say this before the region is registered."""
        try:
            self._say(region)
        except OSError:
            # The reaper was killed. What it held is named after this process, and a later client finds it by that.
            self._socket.close()
            self._socket, self._told = _connect(self._endpoint.target), b""
            self._say(region)

    def _say(self, region: str) -> None:
        """The region, and first how to call the server where the reaper does not know it."""
        access = json.dumps(self._endpoint.access()).encode()
        if access != self._told:
            self._socket.sendall(b"=" + access + b"\n")
            self._told = access
        self._socket.sendall(f"+{region}\n".encode())

    def drop(self, region: str) -> None:
        """Say this when the region is unregistered."""
        try:
            self._socket.sendall(f"-{region}\n".encode())
        except OSError:
            return

    def close(self) -> None:
        """The reaper unregisters whatever was not dropped."""
        self._socket.close()


_OPEN: "weakref.WeakSet[Lease]" = weakref.WeakSet()


def _connect(target: str) -> socket.socket:
    deadline = time.monotonic() + START_S
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(START_S)
        try:
            client.connect(_address(target))
            if (owner := reaper.user(client)) != os.geteuid():
                raise PermissionError(f"the name of the reaper for {target} is taken by user {owner}")
            # Its answer proves that it is not just about to end.
            if client.recv(32):
                return client
        except ConnectionError:
            client.close()
            _start(target)
        except OSError:
            client.close()
            raise
        client.close()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no reaper for {target} came up within {START_S:.0f} s")


def _address(target: str) -> str:
    # A hash, because such a name has room for 107 bytes.
    server = hashlib.blake2s(target.encode(), digest_size=12).hexdigest()
    return f"\0triton-client-reaper-{os.geteuid()}-{server}"


def _start(target: str) -> None:
    """Start a reaper, unless another process was first; raises `OSError` when it does not run."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(_address(target))
        except OSError:
            return
        listener.listen(512)
        ended = subprocess.run(
            # -P: its folder holds modules of this package, which must not stand before the standard library's.
            [sys.executable, "-P", reaper.__file__, target],
            stdin=listener.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            check=False,
        )
    if ended.returncode:
        raise OSError(f"the reaper for {target} ended with code {ended.returncode}")


def _leave() -> None:
    """A forked child must not keep its parent's lease alive."""
    for lease in list(_OPEN):
        lease.close()


os.register_at_fork(after_in_child=_leave)
