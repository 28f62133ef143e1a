"""A socket that is sent and received on in turns, for calls that block."""

import contextlib
import select
import socket
import ssl
from typing import Protocol

from .steps import seconds_until

Piece = bytes | memoryview

TLS_BYTES = 256 << 10
"""The largest piece of a request that is encrypted at once."""

MOST_PIECES = 512
"""How many pieces one call of the system sends; it refuses more than 1024."""


class OutOfTimeError(TimeoutError):
    """The caller's time is over, which the operating system's own `TimeoutError` does not say."""


class AnswerError(Exception):
    """What came is not an answer of the protocol, or not a whole one."""


LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket raises that can send or receive nothing now."""


class Reader(Protocol):
    """What takes the bytes that come; raises `AnswerError` for what is not an answer."""

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""

    def received(self, count: int) -> None:
        """Take `count` bytes that were written to the beginning of `room`."""

    def ended(self) -> None:
        """Take the end of the connection."""


class Line:
    """A connected socket; `unsent` is what is to be sent on it."""

    def __init__(self, connected: socket.socket, reader: Reader, unsent: list[Piece] | None = None) -> None:
        self._socket, self._reader, self._is_tls = connected, reader, isinstance(connected, ssl.SSLSocket)
        # Without TLS, each call of the system says itself whether it waits.
        connected.setblocking(not self._is_tls)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._polled = select.POLLIN
        self.unsent: list[Piece] = [] if unsent is None else unsent

    @property
    def is_sent(self) -> bool:
        """Whether all was handed to the system."""
        return not self.unsent

    def is_over(self) -> bool:
        """Whether what is awaited has come."""
        raise NotImplementedError

    def is_readable(self) -> bool:
        """Whether something has come on an idle connection."""
        if self._polled != select.POLLIN:
            self._await(select.POLLIN)
        return bool(self._poll.poll(0))

    def run(self, deadline: float | None) -> None:
        """Send and receive until `is_over`; raises `OutOfTimeError`, an `OSError`, or what the reader raises.

        What has come by the deadline is looked at once, but a server that goes on sending gains no time.
        """
        self._send()
        is_late = False
        while not self.is_over():
            if is_late:
                raise OutOfTimeError
            is_late = deadline is not None and not seconds_until(deadline)
            if self._wait(deadline):
                try:
                    self._receive()
                except LATER:
                    continue
            if self.unsent:
                self._send()

    def _wait(self, deadline: float | None) -> bool:
        """Wait until something can be received, or sent; returns whether it is the first."""
        if not self._is_tls and not self.unsent and deadline is None:
            return True  # receiving waits by itself
        events = self._events(None if deadline is None else seconds_until(deadline))
        if not events:
            raise OutOfTimeError
        return bool(events & ~select.POLLOUT)

    def _events(self, seconds: float | None) -> int:
        """What can be done on the socket, 0 if nothing can in this time."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return select.POLLIN
        self._await(select.POLLIN | select.POLLOUT if self.unsent else select.POLLIN)
        events = self._poll.poll(None if seconds is None else 1e3 * seconds)
        return events[0][1] if events else 0

    def _await(self, events: int) -> None:
        if events != self._polled:
            self._poll.modify(self._socket, events)
            self._polled = events

    def _send(self) -> None:
        """Send as much as the system takes."""
        try:
            while self.unsent:
                if self._is_tls:
                    sent = self._socket.send(memoryview(self.unsent[0])[:TLS_BYTES])
                else:
                    sent = self._socket.sendmsg(self.unsent[:MOST_PIECES], (), socket.MSG_DONTWAIT)
                drop(self.unsent, sent)
        except LATER:
            return
        except OSError:
            # The server may have answered before it closed the connection.
            with contextlib.suppress(OSError, AnswerError):
                while not self.is_over():
                    self._receive(0 if self._is_tls else socket.MSG_DONTWAIT)
            if not self.is_over():
                raise

    def _receive(self, flags: int = 0) -> None:
        if count := self._socket.recv_into(self._reader.room(), 0, flags):
            self._reader.received(count)
        else:
            self._reader.ended()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def drop(pieces: list[Piece], count: int) -> None:
    """Remove the first `count` bytes, which were sent."""
    if count == sum(map(len, pieces)):
        pieces.clear()
        return
    while pieces and count >= len(pieces[0]):
        count -= len(pieces.pop(0))
    if count:
        pieces[0] = memoryview(pieces[0])[count:]
