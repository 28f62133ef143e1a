"""A small HTTP server for machines to read: few requests at a time, each with a time limit."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from serve.resources import PortError

MOST_AT_A_TIME = 16
# Of a whole request, however slowly it comes.
LONGEST_S = 15.0
# The timeout of a connection counts for a whole write, so a slow link gets an answer in pieces.
PIECE = 1 << 14


class Handler(BaseHTTPRequestHandler):
    """Answers one request; a subclass adds `do_GET`."""

    timeout = 5.0
    server_version, sys_version = "triton-batching", ""

    def answer(self, status: int, content: bytes = b"", kind: str = "text/plain; charset=utf-8") -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.send(content)

    def send(self, content: bytes) -> None:
        """Write in pieces, each of which has the time limit of a write."""
        for begin in range(0, len(content), PIECE):
            self.wfile.write(content[begin : begin + PIECE])

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


class BoundedServer(ThreadingHTTPServer):
    """Closes a connection at once while `MOST_AT_A_TIME` others are open, and each after `LONGEST_S`.

    A connection with `without_limit` lasts as long as its reader reads.
    """

    block_on_close = False
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_AT_A_TIME)
        self._limits: dict[socket.socket, threading.Timer] = {}
        try:
            super().__init__((host, port), handler)
        except (OSError, OverflowError) as error:
            raise PortError(
                f"port {port} on {host} cannot be used ({getattr(error, 'strerror', error)}). Stop the program that "
                "uses it, or choose another port; 0 takes any free one."
            ) from error

    def server_bind(self) -> None:
        """Bind, without asking the network for this machine's name as the standard library does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, if one is left."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the machine has no thread left
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and end the connection after `LONGEST_S`."""
        limit = self._limits[request] = threading.Timer(LONGEST_S, _end, [request])
        limit.daemon = True
        try:
            limit.start()
            super().process_request_thread(request, client_address)
        finally:
            self.without_limit(request)
            self._free.release()

    def without_limit(self, request: socket.socket) -> None:
        """Let a connection last for as long as its reader reads."""
        if limit := self._limits.pop(request, None):
            limit.cancel()

    def handle_error(self, *_: object) -> None:
        """Print nothing: the client has gone, or sent no HTTP."""


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def answering(server: socketserver.BaseServer, name: str) -> Iterator[None]:
    """Answer on a thread inside the block; the port is free after it."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
