"""HTTP for clients that block: sockets that are kept for the next request. `_async_http.py` has those for asyncio.

HTTP cannot cancel: a request whose caller has left still runs to its end.
"""

import contextlib
import select
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._address import Address
from ._http_answer import HttpAnswer, HttpError, TooLargeError
from ._steps import INFER, Step, seconds_left
from .errors import ClientError, ClosedError, explained, timed_out

JOINED_BYTES = 64 << 10
"""A request of at most this size is copied into one piece where each piece costs a call of its own."""

TLS_BYTES = 256 << 10
"""The largest piece of a request that is encrypted at once."""

MOST_PIECES = 512
"""How many pieces one call of the system sends; it refuses more than 1024."""

WATCH_S = 300
"""How long a connection may be silent before the system asks whether the server is still there."""

Piece = bytes | memoryview

_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What reading from or writing to a connection that the server has closed raises."""

LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket raises that can go on later."""

_WANTED: dict[type, int] = {ssl.SSLWantReadError: select.POLLIN, ssl.SSLWantWriteError: select.POLLOUT}
"""What TLS then waits for."""


class HttpTarget:
    """What both kinds of connection share: the address, TLS, and what an error of a socket means for a call."""

    def __init__(self, address: Address, model: str) -> None:
        self._url, self._port, self._model = address.url, address.port, model
        self._host = address.host.strip("[]")
        self._tls = address.tls.context() if address.tls else None
        # The name that has to be in the certificate.
        self._name = self._host if self._tls else None

    def _check_again(self, error: Exception, step: Step, *, connected: bool, reused: bool, complete: bool) -> None:
        """Return if the request can be sent again on another connection; raise a `ClientError` otherwise.

        It can if the server closed a kept connection before it had all of the request, or if the request does not run
        a model.
        """
        if isinstance(error, TimeoutError):
            raise timed_out(step.options.timeout_s, self._url, self._model) from error
        closed = reused and isinstance(error, _CLOSED)
        if closed and not (complete and step.method == INFER):
            return
        raise self._refused(error, connected=connected, closed=closed) from error

    def _refused(self, error: Exception, *, connected: bool, closed: bool) -> ClientError:
        text, sent = str(error) or type(error).__name__, connected
        if isinstance(error, TooLargeError):
            return explained("RESOURCE_EXHAUSTED", text, self._url, self._model, http=True)
        if isinstance(error, ssl.SSLError) and not closed:
            text, sent = f"handshake failed: {text}", False
        return explained("UNAVAILABLE", text, self._url, self._model, sent=sent, http=True)


class HttpConnection(HttpTarget):
    """Connections to a server that several threads may use together; each carries one request at a time.

    The system's resolver of host names knows no deadline, so a call that connects may outlast its own by that.
    """

    def __init__(self, address: Address, model: str, most_bytes: int) -> None:
        super().__init__(address, model)
        self._most_bytes, self._closed = most_bytes, False
        self._idle: list[HttpSocket] = []

    def send(self, step: Step) -> Any:
        """Send one request; returns what `step.read` makes of its answer. Raises a `ClientError`."""
        pieces: list[Piece] = [step.head, *step.tensors]
        if self._tls:
            pieces = joined(pieces)
        while True:
            used = kept = self._kept()
            try:
                used = used or self._connect(step.deadline)
                used.ask(pieces, step.deadline)
            except (OSError, HttpError) as error:
                complete = used is not None and used.is_sent
                if used:
                    used.close()
                self._check_again(error, step, connected=used is not None, reused=bool(kept), complete=complete)
                continue
            except BaseException:
                if used:
                    used.close()
                raise
            try:
                return step.read(used.answer)
            finally:
                self._give_back(used)

    def _kept(self) -> "HttpSocket | None":
        """An idle connection that the server has not closed."""
        if self._closed:
            raise ClosedError(f"'{self._model}' was closed.")
        while True:
            try:
                kept = self._idle.pop()
            except IndexError:  # none is left; other threads may take connections out too
                return None
            if not kept.has_ended():
                return kept
            kept.close()

    def _connect(self, deadline: float | None) -> "HttpSocket":
        opened = self._reach(deadline)
        try:
            watch(opened)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                opened = self._tls.wrap_socket(opened, server_hostname=self._name, do_handshake_on_connect=False)
            return HttpSocket(opened, self._most_bytes, deadline)
        except BaseException:
            opened.close()
            raise

    def _reach(self, deadline: float | None) -> socket.socket:
        """A socket that is connected to the first address of the host that answers."""
        failure = OSError("the name of the host has no address")
        for *_, place in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
            try:
                return socket.create_connection((str(place[0]), self._port), seconds_left(deadline))
            except OSError as error:
                failure = error
        raise failure

    def _give_back(self, used: "HttpSocket") -> None:
        if not used.answer.keeps or used.unsent:
            used.close()
            return
        used.answer.reset()
        # The one that is idle for longest: servers close those first, and its descriptor would be kept.
        with contextlib.suppress(IndexError):
            if self._idle:
                oldest = self._idle.pop(0)  # taken out, since two threads must not look at one socket
                if oldest.has_ended():
                    oldest.close()
                else:
                    self._idle.insert(0, oldest)
        self._idle.append(used)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the idle sockets; one with a request in flight is closed when that is answered."""
        self._closed = True
        with contextlib.suppress(IndexError):  # other threads may take sockets out too
            while True:
                self._idle.pop().close()


class HttpSocket:
    """A connected socket, and the request that is on it, of which `unsent` was not handed to the system."""

    def __init__(self, connected: socket.socket, most_bytes: int, deadline: float | None) -> None:
        """With TLS, shakes hands; raises `TimeoutError` after the deadline, another `OSError` if it fails."""
        self._socket, self._is_tls = connected, isinstance(connected, ssl.SSLSocket)
        # Without TLS, each call of the system says itself whether it waits.
        connected.setblocking(not self._is_tls)
        self._poll, self._polled = select.poll(), select.POLLIN
        self._poll.register(connected, select.POLLIN)
        self.answer, self.unsent = HttpAnswer(most_bytes), list[Piece]()
        if isinstance(connected, ssl.SSLSocket):
            while wanted := self._try(connected.do_handshake):
                self._wait(wanted, deadline)

    @property
    def is_sent(self) -> bool:
        """Whether the whole request was handed to the system."""
        return not self.unsent

    def has_ended(self) -> bool:
        """Whether the server has closed an idle connection: something can be received, and nothing was asked."""
        return bool(self._events(select.POLLIN, 0))

    def ask(self, pieces: Sequence[Piece], deadline: float | None) -> None:
        """Send a request and receive its answer, which may come before all is sent.

        A server that goes on sending gains no time. Raises `TimeoutError`, another `OSError`, or `HttpError`.
        """
        waits = deadline is None and not self._is_tls
        self.unsent[:] = pieces
        wanted = self._send()
        while not self.answer.complete:
            if waits and not self.unsent:
                self._receive(0)  # waits by itself
                continue
            self._wait(wanted | select.POLLIN, deadline)
            wanted = self._try(self._receive)
            if self.unsent and not self.answer.complete:
                wanted |= self._send()

    def _send(self) -> int:
        """Send as much as the system takes; returns what to wait for if it does not take all."""
        try:
            while self.unsent:
                if self._is_tls:
                    sent = self._socket.send(memoryview(self.unsent[0])[:TLS_BYTES])
                else:
                    sent = self._socket.sendmsg(self.unsent[:MOST_PIECES], (), socket.MSG_DONTWAIT)
                drop(self.unsent, sent)
        except LATER as error:
            return _WANTED.get(type(error), select.POLLOUT)
        except OSError:
            # The server may have answered before it closed the connection.
            with contextlib.suppress(OSError, HttpError):
                while not self.answer.complete:
                    self._receive()
            if not self.answer.complete:
                raise
        return 0

    def _receive(self, flags: int = socket.MSG_DONTWAIT) -> None:
        if count := self._socket.recv_into(self.answer.room(), 0, 0 if self._is_tls else flags):
            self.answer.received(count)
        else:
            self.answer.ended()

    def _try(self, do: Callable[[], None]) -> int:
        """Do what does not wait; returns what to wait for if it could not be done, 0 if it was."""
        try:
            do()
        except LATER as error:
            return _WANTED.get(type(error), select.POLLIN)
        return 0

    def _wait(self, wanted: int, deadline: float | None) -> None:
        """Wait until the socket can go on; raises `TimeoutError` after the deadline."""
        left = seconds_left(deadline)
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() and wanted & select.POLLIN:
            return
        if not self._events(wanted, left):
            raise TimeoutError

    def _events(self, wanted: int, seconds: float | None) -> int:
        """What can be done on the socket, 0 if nothing can in this time."""
        if wanted != self._polled:
            self._poll.modify(self._socket, wanted)
            self._polled = wanted
        events = self._poll.poll(None if seconds is None else 1e3 * seconds)
        return events[0][1] if events else 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def watch(connected: socket.socket) -> None:
    """Let the system end a connection whose server has vanished."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, WATCH_S)


def joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces of a request as one, if they are small."""
    return [b"".join(pieces)] if sum(map(len, pieces)) <= JOINED_BYTES else pieces


def drop(pieces: list[Piece], count: int) -> None:
    """Remove the first `count` bytes, which were sent."""
    while pieces and count >= len(pieces[0]):
        count -= len(pieces.pop(0))
    if count:
        pieces[0] = memoryview(pieces[0])[count:]
