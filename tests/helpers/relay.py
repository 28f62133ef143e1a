"""A relay in front of a server, which keeps what the client sends, and can end TLS."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RST_STREAM = 3


@dataclass(kw_only=True)
class Relay:
    """`url` is where it listens, `sent` what each connection's client has sent, `ended` those that have closed."""

    url: str
    sent: list[bytearray] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def frames(self, kind: int) -> int:
        """How many HTTP/2 frames of this type the clients have sent."""
        return sum(_frames(bytes(one), kind) for one in self.sent)


def _frames(sent: bytes, kind: int) -> int:
    assert sent.startswith(PREFACE), "not HTTP/2"
    found, begin = 0, len(PREFACE)
    while begin + 9 <= len(sent):
        found += sent[begin + 3] == kind
        begin += 9 + int.from_bytes(sent[begin : begin + 3])
    return found


@contextlib.contextmanager
def relay(target: str, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Relay]:
    """Forward connections to `target` until the end; with `tls` the clients have to speak it."""
    sixth = ":" in host
    with socket.create_server((host, 0), family=socket.AF_INET6 if sixth else socket.AF_INET) as listener:
        running = Relay(url=f"{f'[{host}]' if sixth else host}:{listener.getsockname()[1]}")
        threading.Thread(target=_accept, args=(listener, running, target, tls), daemon=True).start()
        yield running
        # A thread in accept() keeps the socket alive after close().
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, running: Relay, target: str, tls: ssl.SSLContext | None) -> None:
    host, port = target.rsplit(":", 1)
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, running, (host, int(port)), tls), daemon=True).start()


def _serve(client: socket.socket, running: Relay, target: tuple[str, int], tls: ssl.SSLContext | None) -> None:
    try:
        client = tls.wrap_socket(client, server_side=True) if tls else client
    except OSError:
        client.close()
        return
    server = socket.create_connection(target)
    running.sent.append(sent := bytearray())
    number = len(running.sent) - 1
    threading.Thread(target=_pump, args=(server, client, bytearray()), daemon=True).start()
    _pump(client, server, sent)
    running.ended.append(number)


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(1 << 16):
            kept += received
            sink.sendall(received)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
