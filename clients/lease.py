"""The lease of a client on its shared memory: when the process ends, even by kill -9, its regions are unregistered.

A killed process cannot do that itself, so another process, the reaper, holds a socket to it and unregisters its regions
when that closes. There is one reaper per server and user; the client that binds its abstract socket first starts it.
Any user may bind or connect to such a name, so each side checks that the other is a process of the same user.
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
    """The regions of this process on one server. Raises `OSError` if no reaper answers or starts."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._socket, self._sent_access = _connect(endpoint.target), b""
        _OPEN.add(self)

    def hold(self, region: str) -> None:
        """Tell the reaper of a region; call this before the region is registered."""
        try:
            self._send(region)
        except OSError:
            # The reaper was killed. Its regions are named after this process; a later client finds them by that.
            self._socket.close()
            self._socket, self._sent_access = _connect(self._endpoint.target), b""
            self._send(region)

    def _send(self, region: str) -> None:
        """Send the region's name, and before it how to call the server if that has changed."""
        access = json.dumps(self._endpoint.access()).encode()
        if access != self._sent_access:
            self._socket.sendall(b"=" + access + b"\n")
            self._sent_access = access
        self._socket.sendall(f"+{region}\n".encode())

    def drop(self, region: str) -> None:
        """Tell the reaper that a region was unregistered."""
        try:
            self._socket.sendall(f"-{region}\n".encode())
        except OSError:
            return

    def close(self) -> None:
        """End the lease; the reaper unregisters the regions that were not dropped."""
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
            # An answer proves that the reaper is not about to end.
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
    # A hash, because the name of an abstract socket has room for 107 bytes.
    server = hashlib.blake2s(target.encode(), digest_size=12).hexdigest()
    return f"\0triton-client-reaper-{os.geteuid()}-{server}"


def _start(target: str) -> None:
    """Start a reaper, unless another process was first; raises `OSError` if it does not run."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(_address(target))
        except OSError:
            return
        listener.listen(512)
        ended = subprocess.run(
            # -P: the modules in its folder must not shadow those of the standard library.
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
