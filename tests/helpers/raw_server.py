"""A server of HTTP whose answers are bytes that a test gives, in the pieces that it gives."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

END = b"\r\n\r\n"
CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
}


@dataclass(kw_only=True)
class Request:
    """A request of which the head has come: `connection` counts from 0, `number` counts on each connection."""

    client: socket.socket
    connection: int
    number: int
    head: bytes
    begun: bytes

    def length(self) -> int:
        return int(self.head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0])

    def body(self) -> bytes:
        """Receive the whole body."""
        received = bytearray(self.begun)
        while len(received) < self.length():
            piece = self.client.recv(1 << 20)
            if not piece:
                raise ConnectionError("the client closed the connection")
            received += piece
        return bytes(received)

    def tensor(self) -> NDArray[Any]:
        """The request's only input."""
        body, head = self.body(), self.head.lower()
        length = int(head.partition(b"inference-header-content-length:")[2].split(b"\r\n")[0])
        (described,) = json.loads(body[:length])["inputs"]
        return np.frombuffer(body[length:], np.float32).reshape(described["shape"])


def infer_body(outputs: Sequence[tuple[str, str, Sequence[int], bytes]]) -> tuple[bytes, int]:
    """The body of an answer with outputs as (name, datatype, shape, bytes), and the length of its JSON."""
    described = [
        {"name": name, "datatype": datatype, "shape": [*shape], "parameters": {"binary_data_size": len(content)}}
        for name, datatype, shape, content in outputs
    ]
    head = json.dumps({"model_name": "m", "model_version": "1", "outputs": described}).encode()
    return head + b"".join(content for *_, content in outputs), len(head)


def answer(array: NDArray[np.float32], *headers: str) -> bytes:
    """A whole answer with the array as "y"."""
    body, length = infer_body([("y", "FP32", array.shape, array.tobytes())])
    return whole(200, body, f"Inference-Header-Content-Length: {length}", *headers)


def whole(status: int, body: bytes, *headers: str) -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status} Some reason", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + END + body


Script = Callable[[Request], bool]
"""Answers a request; returns whether the connection stays open."""


@dataclass(kw_only=True)
class RawServer:
    """`script` answers inference requests; `ended` holds the connections that clients have closed.

    `connections` counts all, `over` those that are closed here.
    """

    url: str
    script: Script
    config: bytes = field(default_factory=lambda: whole(200, json.dumps(CONFIG).encode()))
    connections: int = 0
    over: int = 0
    ended: list[int] = field(default_factory=list)

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                threading.Thread(target=self.serve, args=(client, self.connections - 1), daemon=True).start()

    def serve(self, client: socket.socket, connection: int) -> None:
        self.talk(client, connection)
        self.over += 1

    def talk(self, client: socket.socket, connection: int) -> None:
        number = 0
        with contextlib.suppress(OSError), client:
            while True:
                received = b""
                while END not in received:
                    if not (piece := client.recv(1 << 16)):
                        self.ended.append(connection)
                        return
                    received += piece
                head, _, begun = received.partition(END)
                if head.startswith(b"GET"):
                    client.sendall(self.config)
                    continue
                request = Request(client=client, connection=connection, number=number, head=head + END, begun=begun)
                if not self.script(request):
                    return
                number += 1


def echo(request: Request) -> bool:
    """Answer with the tensor that came."""
    request.client.sendall(answer(request.tensor()))
    return True


@contextlib.contextmanager
def raw_server(script: Script = echo) -> Iterator[RawServer]:
    """Serve on a free port of loopback until the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = RawServer(url=f"127.0.0.1:{listener.getsockname()[1]}", script=script)
        threading.Thread(target=running.accept, args=(listener,), daemon=True).start()
        yield running
        # A thread in accept() keeps the socket alive after close().
        listener.shutdown(socket.SHUT_RDWR)
