"""A connection of HTTP/2 that carries many calls over gRPC together, for asyncio."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import cast

from . import channel
from .channel import prepare
from .http2 import Http2
from .http2_frames import LARGEST
from .http2_sending import Call
from .line import MOST_PIECES, AnswerError, Piece, drop

PIECE_BYTES = 64 << 10
"""The largest piece that asyncio is given; of one that the system does not take, it keeps a copy."""

READ_S = 1.0
"""How long answers are read from a connection on which nothing can be sent any more."""


class Waited(Call):
    """A call, and the future of the task that waits for its answer; `after` is called at its end if that has left."""

    __slots__ = ("after", "answer")

    def __init__(self, opening: bytes, pieces: Sequence[Piece], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(opening, pieces, _settle)
        self.answer: asyncio.Future[None] = loop.create_future()
        self.after: Callable[[], None] | None = None

    def let_go(self) -> None:
        """End the caller with `CancelledError`."""
        self.answer.cancel()

    def expire(self) -> None:
        """Take that the caller's time is over."""
        if not self.answer.done():
            self.answer.set_exception(TimeoutError())


def _settle(call: Call) -> None:
    assert isinstance(call, Waited)
    if not call.answer.done():
        call.answer.set_result(None)
    if call.after:
        call.after()


class AsyncLine(asyncio.BufferedProtocol):
    """One connection; with calls in flight it is in `_ALIVE`, so that the end of the loop does not close it."""

    _transport: asyncio.Transport

    def __init__(self, lines: "set[AsyncLine]", window: int = LARGEST) -> None:
        self.loop, self.http2, self._lines = asyncio.get_running_loop(), Http2(window), lines
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.closed = asyncio.Event()
        self._new: list[Call] = []
        self._is_planned = self._is_full = self._is_left = self._pinged = False
        self._heard = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, call: Call) -> None:
        """Begin a call; it is sent together with those that other tasks begin meanwhile."""
        self._new.append(call)
        self.http2.ask(call)
        _ALIVE.add(self)
        self.plan()

    def plan(self) -> None:
        """Send soon what there is to send."""
        if not self._is_planned:
            self._is_planned = True
            self.loop.call_soon(self._send)

    def let_go(self, *, at_once: bool) -> None:
        """End all callers with `CancelledError`, and the connection now or after the last answer."""
        self._is_left = True
        for call in self.http2.all():
            cast(Waited, call).let_go()
        if at_once or not self.http2.all():
            self.abort()

    def check_idle(self) -> None:
        """Take that calls may have ended."""
        if not self.http2.all():
            _ALIVE.discard(self)
            if self._is_left or not self.http2.takes:
                self.abort()

    def abort(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once connected, with TLS after its handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        # A byte that asyncio keeps must not be overtaken; with TLS it counts from the limit on, without from above it.
        self._transport.set_write_buffer_limits(high=1 if self._is_tls else 0, low=0)
        opened: socket.socket = transport.get_extra_info("socket")
        self._file = opened.fileno()
        prepare(opened)
        self._lines.add(self)
        self._timer = self.loop.call_later(channel.KEEPALIVE_S, self._look)
        self._send()

    def get_buffer(self, _: int) -> memoryview:
        """Called by asyncio for a place to receive to."""
        return self.http2.room()

    def buffer_updated(self, count: int) -> None:
        """Called by asyncio when something was received."""
        self._heard, self._pinged = self.loop.time(), False
        try:
            self.http2.received(count)
        except AnswerError as error:
            self._end(error)
            self.abort()
            return
        if self.http2.is_ready and not self.opened.done():
            self.opened.set_result(None)
        if self.http2.out:
            self.plan()
        if not self.http2.calls:
            self.check_idle()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        self._end(error if isinstance(error, OSError) else ConnectionResetError("the server closed the connection"))
        self._lines.discard(self)
        _ALIVE.discard(self)
        self.closed.set()
        if self._timer:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """Called by asyncio when the system takes no more for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Called by asyncio when the system has taken all that it was given."""
        self._is_full = False
        self._send()

    def _end(self, error: Exception) -> None:
        """End what waits for this connection."""
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # nobody may wait any more
            return
        if self.http2.is_ready:
            for call in self._new:
                call.is_unknown = True  # nothing of it was sent
            self.http2.ended(error)

    def _send(self) -> None:
        """Send as much as the system takes: from the tensors' own memory, and with TLS through asyncio.

        asyncio tells when the system takes more, if it is given a piece that the system does not take.
        """
        self._is_planned = False
        out = self.http2.out
        try:
            while not (self._is_full or self._transport.is_closing()) and (out or self.http2.go_on()):
                self._send_some(out)
        except OSError:
            # The server may have answered before it closed the connection; reading finds its end.
            self.http2.takes = False
            out.clear()
            self.loop.call_later(READ_S, self.abort)

    def _send_some(self, out: list[Piece]) -> None:
        if not self._is_tls:
            try:
                drop(out, os.writev(self._file, out[:MOST_PIECES]))
                self._new.clear()
                return
            except BlockingIOError:
                pass
        self._new.clear()
        size, count = 0, 0
        for piece in out:
            if size + len(piece) > PIECE_BYTES:
                break
            size, count = size + len(piece), count + 1
        piece = b"".join(out[:count]) if count else bytes(memoryview(out[0])[:PIECE_BYTES])
        drop(out, len(piece))
        self._transport.write(piece)

    def _look(self) -> None:
        """Ask a host that was silent for a sign of life; without one it counts as gone."""
        if self._pinged:
            self._end(ConnectionResetError("the host gives no sign of life"))
            self.abort()
            return
        silent_s = self.loop.time() - self._heard
        left_s = channel.KEEPALIVE_S - silent_s
        if left_s <= 0 and self.http2.calls:
            self.http2.ping()
            self._send()
            self._pinged, left_s = True, channel.KEEPALIVE_TIMEOUT_S
        elif left_s <= 0:
            left_s = channel.KEEPALIVE_S
        self._timer = self.loop.call_later(left_s, self._look)


_ALIVE: set[AsyncLine] = set()
