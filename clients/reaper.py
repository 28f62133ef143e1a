"""The process that takes a dead client's shared memory off the server: one per server and user, for as long as needed.

`lease.py` starts it with a listening socket as its standard input. A client says `+REGION` before it registers one and
`-REGION` after it unregistered one; the regions of a connection that ends are unregistered. It runs by its path, needs
nothing of this package, and loads gRPC only once there is something to unregister.
"""

import os
import selectors
import socket
import sys
import time
from typing import Any

LINGER_S = 2.0
"""How long it waits for another client after the last one."""

RETRY_S = 0.25
"""A region that a request still uses cannot be unregistered; it is tried again this often."""

UNREACHABLE_S = 10.0
"""A server that does not answer for so long is taken for gone, and its regions with it."""


class Reaper:
    """The clients by their sockets, and the regions of those that are gone."""

    def __init__(self, listener: socket.socket, url: str) -> None:
        self._listener, self._url = listener, url
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: dict[socket.socket, tuple[bytearray, set[str]]] = {}
        self._orphans: dict[str, float] = {}
        self._calls: list[Any] = []

    def run(self) -> None:
        """Serve clients until there is none, and nothing left to unregister."""
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
            client.sendall(b"%d\n" % os.getpid())
        except OSError:
            return  # it was killed before it held anything
        self._clients[client] = (bytearray(), set())
        self._selector.register(client, selectors.EVENT_READ)

    def _read(self, client: socket.socket) -> None:
        try:
            received = client.recv(1 << 16)
        except OSError:
            received = b""
        text, regions = self._clients[client]
        if not received:
            self._selector.unregister(client)
            client.close()
            del self._clients[client]
            self._orphans |= dict.fromkeys(regions, time.monotonic())
            return
        text += received
        *lines, rest = text.split(b"\n")
        text[:] = rest
        for line in lines:
            (regions.add if line[:1] == b"+" else regions.discard)(line[1:].decode())

    def _sweep(self) -> None:
        for region, since in list(self._orphans.items()):
            answered = self._try(region)
            if answered or (answered is None and time.monotonic() - since > UNREACHABLE_S):
                del self._orphans[region]

    def _try(self, region: str) -> bool | None:
        """Whether the region is off the server now; None when no server answers."""
        import grpc
        from tritonclient.grpc import service_pb2

        if not self._calls:
            channel = grpc.insecure_channel(self._url, [("grpc.enable_http_proxy", 0)])
            for kind in ("System", "Cuda"):
                path = f"/inference.GRPCInferenceService/{kind}SharedMemoryUnregister"
                self._calls.append(channel.unary_unary(path))
        # Both requests are one field, the name; a name of the other kind is no error.
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region).SerializeToString()
        try:
            for call in self._calls:
                call(request, timeout=1.0)
        except grpc.RpcError as error:
            if error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                return None
            # Any other answer is final: such a server has no memory of a GPU.
            return "in use" not in (error.details() or "")
        return True


def main() -> None:
    """Leave the client that started it, then serve."""
    if os.fork():
        os._exit(0)
    os.setsid()
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    Reaper(listener, sys.argv[1]).run()


if __name__ == "__main__":
    main()
