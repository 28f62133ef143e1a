"""HTTP/1.1 over plain sockets, with the minimum for a closed loop: one request in flight on each connection."""

import asyncio
from typing import Self


class Connection(asyncio.Protocol):
    """One connection; `ask` sends a whole request and returns the body of the answer."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        """Send a request; the body of the answer, or `ConnectionError` for any status but 200."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Set the result of the request once the answer is complete."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = bytes(self._received[:end]).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0])
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        self._received.clear()
        answer, self._answer = self._answer, None
        if head.split(b" ", 2)[1] == b"200":
            answer.set_result(body)
        else:
            answer.set_exception(ConnectionError(f"{head.splitlines()[0].decode()}: {body[:200]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request in flight."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection ({error})"))

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()


def post(path: str, host: str, content_type: str, body: bytes, *headers: str) -> bytes:
    """One whole request; `headers` are further header lines."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Type: {content_type}", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
