"""A socket that carries one call over gRPC at a time, for calls that block; `async_line.py` is the one for asyncio."""

import contextlib
import select
import socket
from functools import partial

from . import channel
from .http2 import Http2
from .http2_frames import LARGEST
from .http2_sending import Call
from .line import LATER, AnswerError, Line, OutOfTimeError
from .steps import seconds_until


class GrpcLine(Line):
    """A connection of HTTP/2, and the call that is on it."""

    def __init__(self, connected: socket.socket, window: int = LARGEST) -> None:
        self.http2 = Http2(window)
        super().__init__(connected, self.http2, self.http2.out)
        self._is_awaited = partial(getattr, self.http2, "is_ready")
        self._pinged, self._is_whole = False, True
        self._call: Call | None = None

    def is_over(self) -> bool:
        """Whether the answer has come, or the connection is open."""
        return bool(self._is_awaited())

    def open(self, deadline: float | None) -> None:
        """Wait for the server's first word; raises `OSError` or `AnswerError`."""
        self.run(deadline)

    def is_usable(self) -> bool:
        """Whether another call may begin; reads what came since the last one, and answers it."""
        try:
            while self.is_readable() and self.http2.takes:
                self._receive(0 if self._is_tls else socket.MSG_DONTWAIT)
            if self.unsent:
                self._send()
        except LATER:
            pass
        except (OSError, AnswerError):
            return False
        return self.http2.takes

    def ask(self, call: Call, deadline: float | None, *, again: bool = False) -> None:
        """Make one call, or wait for it again; raises `OutOfTimeError`, and sets the error of any other end."""
        self._is_awaited = partial(getattr, call, call.awaited)
        try:
            if not again:
                self._call, self._is_whole = call, False
                self.http2.ask(call)
            self.run(deadline)
        except OutOfTimeError:
            raise
        except (OSError, AnswerError) as error:
            self.http2.ended(error)
        if call.error and not self._is_whole:
            call.is_unknown = True  # the server has not all of it

    def fileno(self) -> int:
        """The descriptor of the socket, -1 once it is closed."""
        return self._socket.fileno()

    def has_more(self) -> bool:
        """Whether there is something to send."""
        return bool(self.unsent)

    def cancel(self, call: Call) -> None:
        """Cancel a call on the server."""
        self.http2.reset(call)
        self._is_awaited = partial(bool, True)
        try:
            self._send()
        except OSError:
            self.http2.takes = False

    def end(self) -> None:
        """End the connection for the thread that waits on it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self) -> None:
        super()._send()
        while not self.unsent and self.http2.go_on():
            super()._send()
        if self._call and not (self.unsent or self._call.left):
            self._is_whole = True

    def _wait(self, deadline: float | None) -> bool:
        """As in `Line`; a host that gives no sign of life counts as gone."""
        if not (self._is_tls or self.unsent or self._pinged) and deadline is None:
            return True  # receiving waits by itself, for `KEEPALIVE_S`
        silent_s = channel.KEEPALIVE_TIMEOUT_S if self._pinged else channel.KEEPALIVE_S
        events = self._events(silent_s if deadline is None else min(silent_s, seconds_until(deadline)))
        if events:
            self._pinged = self._pinged and not events & select.POLLIN
            return bool(events & ~select.POLLOUT)
        if deadline is not None and not seconds_until(deadline):
            raise OutOfTimeError
        self._doubt()
        return False

    def _receive(self, flags: int = 0) -> None:
        try:
            super()._receive(flags)
        except BlockingIOError:
            if not flags:
                self._doubt()
            raise

    def _doubt(self) -> None:
        """Ask a host that was silent for a sign of life; raises `ConnectionResetError` if that was done before."""
        if self._pinged:
            raise ConnectionResetError("the host gives no sign of life")
        self.http2.ping()
        self._pinged = True
