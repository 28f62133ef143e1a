"""A relay in front of a server: it keeps what clients send, and can hang, crash, or end TLS."""

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RST_STREAM = 3


@dataclass(kw_only=True)
class Relay:
    """`url` is where it listens, `sent` the bytes of each connection's client, `ended` the connections that closed.

    While it `hangs`, no byte is forwarded.
    """

    host: str
    target: str
    tls: ssl.SSLContext | None = None
    port: int = 0
    hangs: bool = False
    sent: list[bytearray] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    _is_down: bool = False
    _clients: list[tuple[socket.socket, threading.Thread]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def frames(self, kind: int) -> int:
        """How many HTTP/2 frames of this type the clients have sent."""
        return sum(_frames(bytes(stream), kind) for stream in self.sent)

    def start(self) -> None:
        """Listen, at the same port as before."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, self.port), family=family)
        self.port, self._is_down = self._listener.getsockname()[1], False
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def crash(self) -> None:
        """End all connections to clients; the server is told nothing, since 2.51 does not survive cancellations."""
        if self._is_down:
            return
        self._is_down = True
        # A thread in accept() keeps the socket alive after close().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client, thread in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            thread.join()
        self._clients.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._clients.append((client, thread))
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            client = self.tls.wrap_socket(client, server_side=True) if self.tls else client
        except OSError:
            client.close()
            return
        host, port = self.target.rsplit(":", 1)
        try:
            server = socket.create_connection((host, int(port)))
        except OSError:  # a channel that a test has left connects again
            client.close()
            return
        self.sent.append(sent := bytearray())
        number = len(self.sent) - 1
        threading.Thread(target=self._forward, args=(server, client, bytearray()), daemon=True).start()
        self._forward(client, server, sent)
        self.ended.append(number)

    def _forward(self, source: socket.socket, sink: socket.socket, received_bytes: bytearray) -> None:
        """Read from one socket until its end, while another thread writes to the other one."""
        waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        writer = threading.Thread(target=self._write, args=(sink, waiting), daemon=True)
        writer.start()
        with contextlib.suppress(OSError):
            while received := source.recv(1 << 16):
                received_bytes += received
                waiting.put(received)
        waiting.put(b"")
        writer.join()

    def _write(self, sink: socket.socket, waiting: "queue.SimpleQueue[bytes]") -> None:
        with contextlib.suppress(OSError):
            while True:
                content = waiting.get()
                while self.hangs:
                    time.sleep(0.01)
                if not content:
                    if not self._is_down:
                        sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(content)


def _frames(sent: bytes, kind: int) -> int:
    assert sent.startswith(PREFACE), "not HTTP/2"
    count, begin = 0, len(PREFACE)
    while begin + 9 <= len(sent):
        count += sent[begin + 3] == kind
        begin += 9 + int.from_bytes(sent[begin : begin + 3])
    return count


@contextlib.contextmanager
def relay(target: str, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", *, port: int = 0) -> Iterator[Relay]:
    """Forward connections to `target` (host:port) until the end; with `tls` the clients have to speak it."""
    running = Relay(host=host, target=target, tls=tls, port=port)
    running.start()
    yield running
    running.hangs = False
    running.crash()
