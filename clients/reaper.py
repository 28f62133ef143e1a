"""The process that unregisters a dead client's shared memory: one per server and user, as long as there are clients.

`lease.py` starts it with a listening socket as its standard input. A client says `=ACCESS`, how to call the server, in
JSON; `+REGION` before it registers one and `-REGION` after it unregistered one; the regions of a connection that ends
are unregistered. Only processes of the same user are heard; lines that are none of these are ignored. It runs by its
path, needs nothing of this package, and loads gRPC only once there is something to unregister.
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
"""How long it waits for another client after the last one."""

RETRY_S = 0.25
"""A region that a request still uses cannot be unregistered; it is tried again this often."""

UNREACHABLE_S = 10.0
"""A server that does not answer for so long is taken for gone, and its regions with it."""

LINE_BYTES = 1 << 16
"""A client that sends a longer line is not one of ours."""

REGIONS = 1 << 16
"""A client that holds more is not one of ours."""

# The names that our clients give (regions.py, device_memory.py); nobody else's memory is unregistered.
_LINE = re.compile(rb"([+-])(triton_client_[0-9A-Za-z_]{1,150})")


def user(peer: socket.socket) -> int:
    """The user whose process is at the other end of a Unix socket."""
    _, owner, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(owner)


@dataclass(eq=False)
class _Client:
    """What one client has said: the text of an unfinished line, how to call the server, and its regions."""

    text: bytearray = field(default_factory=bytearray)
    access: str = "{}"
    regions: set[str] = field(default_factory=set)


class Reaper:
    """The clients by their sockets, and the regions of those that are gone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        # When the client of a region went, and how to call the server.
        self._orphans: dict[str, tuple[float, str]] = {}
        self._calls: dict[str, list[Any]] = {}

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
            return  # it has gone
        except OSError:
            time.sleep(RETRY_S)  # too many open files: those that wait are taken when others have gone
            return
        try:
            if user(client) != os.geteuid():
                client.close()
                return
            client.settimeout(0)
            client.send(b"%d\n" % os.getpid())
        except OSError:
            client.close()
            return  # it was killed before it held anything
        self._clients[client] = _Client()
        self._selector.register(client, selectors.EVENT_READ)

    def _read(self, client: socket.socket) -> None:
        try:
            received = client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        said = self._clients[client]
        said.text += received
        *lines, rest = said.text.split(b"\n")
        said.text[:] = rest
        for line in lines:
            _heard(said, bytes(line))
        if not received or len(rest) > LINE_BYTES or len(said.regions) > REGIONS:
            self._selector.unregister(client)
            client.close()
            del self._clients[client]
            self._orphans |= dict.fromkeys(said.regions, (time.monotonic(), said.access))

    def _sweep(self) -> None:
        for region, (since, access) in list(self._orphans.items()):
            answered = self._try(region, access)
            if answered or (answered is None and time.monotonic() - since > UNREACHABLE_S):
                del self._orphans[region]

    def _try(self, region: str, access: str) -> bool | None:
        """Whether the region is off the server now; None when no server answers."""
        import grpc
        from tritonclient.grpc import service_pb2

        # Both requests are one field, the name; a name of the other kind is no error.
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region).SerializeToString()
        try:
            given = json.loads(access)
            if access not in self._calls:
                channel = _channel(given)
                self._calls[access] = [
                    channel.unary_unary(f"/inference.GRPCInferenceService/{kind}SharedMemoryUnregister")
                    for kind in ("System", "Cuda")
                ]
            metadata = [(str(name), str(value)) for name, value in given["headers"]]
            for call in self._calls[access]:
                call(request, timeout=1.0, metadata=metadata)
        except grpc.RpcError as error:
            if error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                return None
            # Any other answer is final: such a server has no memory of a GPU.
            return "in use" not in (error.details() or "")
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            return None  # no access that can be used, or its files have gone
        return True


def _heard(client: _Client, line: bytes) -> None:
    if found := _LINE.fullmatch(line):
        (client.regions.add if found[1] == b"+" else client.regions.discard)(found[2].decode())
    elif line.startswith(b"="):
        # Brackets nested too deep are a RecursionError.
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(line[1:])
            client.access = line[1:].decode()


def _channel(access: Any) -> Any:
    import grpc

    options = [("grpc.enable_http_proxy", 0)]
    if not access["tls"]:
        return grpc.insecure_channel(access["target"], options)
    files = (access["tls"][name] for name in ("ca", "key", "certificate"))
    ca, key, certificate = (Path(file).read_bytes() if file else None for file in files)
    if bool(key) != bool(certificate):
        raise ValueError("a key without a certificate, or the other way round: gRPC would abort this process")
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
