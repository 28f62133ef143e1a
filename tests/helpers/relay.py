"""A relay in front of a server: it keeps what clients send, and can delay the bytes, drop them, or end TLS."""

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

    Every byte is forwarded `delay_s` later; with `is_silent` all bytes are dropped, as if the host had vanished.
    """

    url: str
    target: tuple[str, int]
    delay_s: float = 0.0
    is_silent: bool = False
    sent: list[bytearray] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def frames(self, kind: int) -> int:
        """How many HTTP/2 frames of this type the clients have sent."""
        return sum(_frames(bytes(stream), kind) for stream in self.sent)

    def accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self.serve, args=(client, tls), daemon=True).start()

    def serve(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        try:
            client = tls.wrap_socket(client, server_side=True) if tls else client
        except OSError:
            client.close()
            return
        server = socket.create_connection(self.target)
        self.sent.append(sent := bytearray())
        number = len(self.sent) - 1
        threading.Thread(target=self.forward, args=(server, client, bytearray()), daemon=True).start()
        self.forward(client, server, sent)
        self.ended.append(number)

    def forward(self, source: socket.socket, sink: socket.socket, received_bytes: bytearray) -> None:
        """Read from one socket until its end, while another thread writes to the other one."""
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        writer = threading.Thread(target=self.write, args=(sink, waiting), daemon=True)
        writer.start()
        with contextlib.suppress(OSError):
            while received := source.recv(1 << 16):
                received_bytes += received
                waiting.put((time.monotonic() + self.delay_s, received))
        waiting.put((time.monotonic() + self.delay_s, b""))
        writer.join()

    def write(self, sink: socket.socket, waiting: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        with contextlib.suppress(OSError):
            while True:
                due, content = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not content:
                    sink.shutdown(socket.SHUT_WR)
                    return
                if not self.is_silent:
                    sink.sendall(content)


def _frames(sent: bytes, kind: int) -> int:
    assert sent.startswith(PREFACE), "not HTTP/2"
    count, begin = 0, len(PREFACE)
    while begin + 9 <= len(sent):
        count += sent[begin + 3] == kind
        begin += 9 + int.from_bytes(sent[begin : begin + 3])
    return count


@contextlib.contextmanager
def relay(
    target: str, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", delay_s: float = 0.0
) -> Iterator[Relay]:
    """Forward connections to `target` (host:port) until the end; with `tls` the clients have to speak it."""
    is_ipv6 = ":" in host
    server, port = target.rsplit(":", 1)
    with socket.create_server((host, 0), family=socket.AF_INET6 if is_ipv6 else socket.AF_INET) as listener:
        url = f"{f'[{host}]' if is_ipv6 else host}:{listener.getsockname()[1]}"
        running = Relay(url=url, target=(server, int(port)), delay_s=delay_s)
        threading.Thread(target=running.accept, args=(listener, tls), daemon=True).start()
        yield running
        # A thread in accept() keeps the socket alive after close().
        listener.shutdown(socket.SHUT_RDWR)
