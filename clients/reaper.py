"""The process that unregisters the shared memory of clients that have ended: one per server and user.

`lease.py` starts it with a listening socket as its standard input. A client sends lines: `=ACCESS`, how to call the
server, in JSON; `+REGION` before it registers a region; `-REGION` after it has unregistered one. When a connection
ends, its regions are unregistered. The reaper accepts only processes of the same user and ignores all other lines. It
runs by its path, imports nothing of this package, and imports gRPC only when there is something to unregister.
"""

import contextlib
import json
import os
import re
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LINGER_S = 2.0
"""How long the reaper waits for another client after the last one."""

RETRY_S = 0.25
"""How often the reaper retries a region that cannot be unregistered yet because a request uses it."""

UNREACHABLE_S = 10.0
"""A server that does not answer for this long counts as gone, and its registrations with it."""

LINE_BYTES = 1 << 16
"""The longest line; a client that sends a longer one is disconnected."""

REGIONS = 1 << 16
"""The most regions of one client; a client that names more is disconnected."""

# The names of regions.py; no other memory is ever unregistered.
_LINE = re.compile(rb"([+-])(triton_client_[0-9A-Za-z_]{1,150})")


def user(peer: socket.socket) -> int:
    """The user whose process is at the other end of a Unix socket."""
    _, owner, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(owner)


@dataclass(eq=False)
class _Client:
    """The state of one client: an unfinished line, how to call the server, and its regions."""

    text: bytearray = field(default_factory=bytearray)
    access: str = "{}"
    regions: set[str] = field(default_factory=set)


class Reaper:
    """The clients by their sockets, and the regions of clients that have ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        # By region: when its client ended, and how to call the server.
        self._orphans: dict[str, tuple[float, str]] = {}
        self._calls: dict[str, Any] = {}

    def run(self) -> None:
        """Serve until no client is left and nothing has to be unregistered."""
        idle_since = time.monotonic()
        while self._clients or self._orphans or time.monotonic() - idle_since < LINGER_S:
            for key, _ in self._selector.select(RETRY_S if self._orphans else LINGER_S):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            if self._orphans:
                self._sweep()
            if self._clients or self._orphans:
                idle_since = time.monotonic()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return  # the client has closed its socket
        except OSError:
            time.sleep(RETRY_S)  # too many open files: waiting clients are accepted when others have ended
            return
        try:
            if user(client) != os.geteuid():
                client.close()
                return
            client.settimeout(0)
            client.send(b"%d\n" % os.getpid())
        except OSError:
            client.close()
            return  # the client was killed before it had a region
        self._clients[client] = _Client()
        self._selector.register(client, selectors.EVENT_READ)

    def _read(self, client: socket.socket) -> None:
        try:
            received = client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        state = self._clients[client]
        state.text += received
        *lines, rest = state.text.split(b"\n")
        state.text[:] = rest
        for line in lines:
            _receive(state, bytes(line))
        if not received or len(rest) > LINE_BYTES or len(state.regions) > REGIONS:
            self._selector.unregister(client)
            client.close()
            del self._clients[client]
            self._orphans |= dict.fromkeys(state.regions, (time.monotonic(), state.access))

    def _sweep(self) -> None:
        for region, (since, access) in list(self._orphans.items()):
            answered = self._try(region, access)
            if answered or (answered is None and time.monotonic() - since > UNREACHABLE_S):
                del self._orphans[region]

    def _try(self, region: str, access: str) -> bool | None:
        """Unregister a region: True if it is gone, False if a request still uses it, None if no server answers."""
        import grpc
        from tritonclient.grpc import service_pb2

        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region).SerializeToString()
        try:
            parsed = json.loads(access)
            if access not in self._calls:
                self._calls[access] = _channel(parsed).unary_unary(
                    "/inference.GRPCInferenceService/SystemSharedMemoryUnregister"
                )
            metadata = [(str(name), str(value)) for name, value in parsed["headers"]]
            self._calls[access](request, timeout=1.0, metadata=metadata)
        except grpc.RpcError as error:
            if error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                return None
            # Any other error is final.
            return "in use" not in (error.details() or "")
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            return None  # the access is malformed, or its files are gone
        return True


def _receive(client: _Client, line: bytes) -> None:
    if match := _LINE.fullmatch(line):
        change = client.regions.add if match[1] == b"+" else client.regions.discard
        change(match[2].decode())
    elif line.startswith(b"="):
        # Deeply nested brackets raise RecursionError.
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(line[1:])
            client.access = line[1:].decode()


def _channel(access: Any) -> Any:
    import grpc

    options: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]
    if authority := access.get("authority"):  # an address of a name; the certificate has the name
        options.append(("grpc.default_authority", str(authority)))
    if not access["tls"]:
        return grpc.insecure_channel(access["target"], options)
    files = (access["tls"][name] for name in ("ca", "key", "certificate"))
    ca, key, certificate = (Path(file).read_bytes() if file else None for file in files)
    if bool(key) != bool(certificate):
        raise ValueError("a key without a certificate, or the reverse, would make gRPC abort this process")
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.secure_channel(access["target"], credentials, options)


def main() -> None:
    """Detach from the client that started it, then serve. The argument, the server's address, is only for `ps`."""
    if os.fork():
        os._exit(0)
    os.setsid()
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    Reaper(listener).run()


if __name__ == "__main__":
    main()
