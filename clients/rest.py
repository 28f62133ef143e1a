"""A connection to a KServe v2 server over HTTP with binary tensors, blocking; `async_rest.py` is the one for asyncio.

HTTP cannot cancel: a request whose caller has left still runs to its end.
"""

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from .endpoint import Endpoint
from .errors import TlsError, explained, timed_out
from .http_answer import Answer, HttpError
from .line import MOST_PIECES, Line, Piece, drop
from .rest_wire import read
from .steps import Step, deadline_after, seconds_until

JOINED_BYTES = 64 << 10
"""With TLS, a request of at most this size is copied into one piece."""

_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What reading from or writing to a connection that the server has closed raises."""


class Rest:
    """What both connections share: the address, TLS, and what an error of a connection means for a call."""

    def __init__(self, url: str | Endpoint) -> None:
        self.endpoint = Endpoint.of(url)
        self.url = self.endpoint.url
        self._host = self.endpoint.host.strip("[]")
        self._tls = self.endpoint.tls.context() if self.endpoint.tls else None
        # The name that has to be in the certificate.
        self._name = (self.endpoint.name or self.endpoint.host).strip("[]") if self._tls else None

    def _check_again(
        self, error: Exception, step: Step, model: str, *, connected: bool, reused: bool, complete: bool
    ) -> None:
        """Return if the request can be sent again on another connection; raise a `ClientError` otherwise.

        It can if the server closed a kept connection before it had all of the request, or if the request does not run
        a model.
        """
        if isinstance(error, TimeoutError):
            raise timed_out(step.timeout_s, self.url, model) from error
        closed = reused and isinstance(error, _CLOSED)
        if closed and not (complete and step.method == "ModelInfer"):
            return
        if isinstance(error, ssl.SSLError) and not closed:
            raise _no_tls(error, self.url, model) from error
        raise explained("UNAVAILABLE", str(error), self.url, model, sent=connected, http=True) from error


class BlockingRestConnection(Rest):
    """A connection that several threads may use together; it keeps its sockets for the next request.

    The system's resolver of host names knows no deadline, so a call that connects may outlast its own by that.
    """

    def __init__(self, url: str | Endpoint) -> None:
        super().__init__(url)
        self._idle: list[_Line] = []
        self._closed = False

    def call(self, step: Step, model: str) -> Any:
        """Send one request of `rest_wire.Requests` about `model`; returns what `rest_wire.read` makes of the answer.

        Raises a `ClientError`.
        """
        deadline = deadline_of(step)
        pieces: list[Piece] = pieces_of(step) if self._tls else [step.message, *step.tensors]
        while True:
            line = kept = self._kept()
            try:
                line = line or _Line(self._connect(deadline))
                line.ask(pieces, deadline)
            except (OSError, HttpError) as error:
                if line:
                    line.close()
                complete = line is not None and line.is_sent
                self._check_again(error, step, model, connected=line is not None, reused=bool(kept), complete=complete)
                continue
            try:
                return read(line.answer, step.method, self.url, model)
            finally:
                self._give_back(line)

    def _kept(self) -> "_Line | None":
        """An idle connection that the server has not closed."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:  # none is left; other threads may take connections out too
                return None
            if not line.is_readable():
                return line
            line.close()

    def _connect(self, deadline: float | None) -> socket.socket:
        opened = socket.create_connection((self._host, self.endpoint.port), left_s(deadline))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # If the certificate is refused, this closes the connection.
        return self._tls.wrap_socket(opened, server_hostname=self._name) if self._tls else opened

    def _give_back(self, line: "_Line") -> None:
        if line.answer.keeps and not line.unsent:
            line.answer.reset()
            self._idle.append(line)
            if self._closed:
                self.close()
        else:
            line.close()

    def close(self) -> None:
        """Close the idle sockets; one with a request in flight is closed when that is answered."""
        self._closed = True
        with contextlib.suppress(IndexError):  # other threads may take sockets out too
            while True:
                self._idle.pop().close()


class _Line(Line):
    """A connection, and the request that is on it."""

    def __init__(self, connected: socket.socket) -> None:
        self.answer = Answer()
        super().__init__(connected, self.answer)

    def is_over(self) -> bool:
        """Whether the answer is complete."""
        return self.answer.complete

    def ask(self, pieces: Sequence[Piece], deadline: float | None) -> None:
        """Send a request and receive its answer, which may come before all is sent.

        Raises `TimeoutError`, another `OSError`, or `HttpError`.
        """
        self.unsent[:] = pieces
        if not (self._is_tls or len(pieces) > MOST_PIECES):
            self._send_at_once(pieces, waits=deadline is None)
        if not self.answer.complete:
            self.run(deadline)

    def _send_at_once(self, pieces: Sequence[Piece], *, waits: bool) -> None:
        """Do what `run` does for most requests, in fewer calls; an error of sending is left to `run`."""
        try:
            sent = self._socket.sendmsg(pieces, (), socket.MSG_DONTWAIT)
        except OSError:
            return
        if sent != sum(map(len, pieces)):
            drop(self.unsent, sent)
            return
        self.unsent.clear()
        answer = self.answer
        while waits and not answer.complete:  # receiving waits by itself
            if count := self._socket.recv_into(answer.room()):
                answer.received(count)
            else:
                answer.ended()


def pieces_of(step: Step) -> list[Piece]:
    """The pieces of a request for TLS, which encrypts and sends each piece by itself: small ones are one."""
    pieces: list[Piece] = [step.message, *step.tensors]
    return [b"".join(pieces)] if sum(map(len, pieces)) <= JOINED_BYTES else pieces


def deadline_of(step: Step) -> float | None:
    """The time on the monotonic clock by which a call must end, None for none."""
    return None if step.timeout_s is None is step.deadline else deadline_after(step.left_s())


def left_s(deadline: float | None) -> float | None:
    """The seconds left, None without a deadline; raises `TimeoutError` after it."""
    if deadline is None:
        return None
    if not (left := seconds_until(deadline)):
        raise TimeoutError
    return left


def _no_tls(error: ssl.SSLError, url: str, model: str) -> TlsError:
    message = (
        f"{url}: no TLS connection: {error}. Give the certificate that signed the server's, as tls=Tls(ca=...), the "
        "name that is in the server's, and a client certificate if it asks for one; for a server without TLS write "
        "http://."
    )
    return TlsError(message, status="UNAVAILABLE", text=str(error), model=model, url=url)
