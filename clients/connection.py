"""A connection to a KServe v2 server over gRPC, blocking; `async_connection.py` is the one for asyncio.

Each call in flight has a connection of HTTP/2 of its own, so no other thread has to wake up for an answer.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from functools import partial
from typing import Any

from . import cancelling, grpc_wire, proxies
from .endpoint import DEFAULT_URL, Endpoint, Options
from .errors import AddressError, ClientError, ServerUnreachableError, TlsError, explained, timed_out
from .http2 import Call, Http2
from .idle import Idle
from .line import LATER, AnswerError, Line, OutOfTimeError
from .rest import deadline_of, left_s
from .steps import Step, deadline_after, seconds_until

BACKOFF_S = 0.1
"""The pause before the next attempt to connect."""

RECONNECT_S = 0.5
"""How long a call waits for a server that is gone."""

CONNECT_S = 5.0
"""How long one attempt to connect may take: a server may be 300 ms away, or on a busy machine."""

KEEPALIVE_S = 330.0
"""How long a connection with calls in flight may be silent before a ping is sent. Servers close the connection of a
client that sends them more often than every 300 s."""

KEEPALIVE_TIMEOUT_S = 20.0
"""How long the answer to a ping, or the acknowledgement of sent bytes, may take before the host counts as gone."""

ATTEMPTS = 5
"""How often a request is sent that the server has certainly not run."""

Refusal = OSError | AnswerError


class Channel:
    """What both connections share: the address, TLS, and what it means if there is no connection.

    Cancellations and deadlines are kept from the server until its answer to ServerMetadata shows that it survives them.
    """

    def __init__(self, url: str | Endpoint, reconnect_s: float) -> None:
        self.endpoint = Endpoint.of(url)
        self.endpoint.over("grpc")  # raises for an HTTP address
        self.url, self._reconnect_s = self.endpoint.url, reconnect_s
        self.cancels = False
        self._host = self.endpoint.host.strip("[]")
        self._tls = self.endpoint.tls.context() if self.endpoint.tls else None
        if self._tls:
            self._tls.set_alpn_protocols(["h2"])
        # The name that has to be in the certificate.
        self._name = (self.endpoint.name or self.endpoint.host).strip("[]") if self._tls else None
        self._openings: dict[str, bytes] = {}

    def _opening(self, step: Step, left: float | None) -> bytes:
        """The head of a request; with its deadline if the server may know of that."""
        opening = self._openings.get(step.method)
        if opening is None:
            opening = grpc_wire.opening(self.endpoint, step.method)
            if "SharedMemory" not in step.method:  # these carry a secret that may change
                self._openings[step.method] = opening
        return opening if left is None or not self._may_cancel(step) else opening + grpc_wire.deadline(left)

    def _may_cancel(self, step: Step) -> bool:
        return self.cancels or step.method != "ModelInfer"

    def _read(self, call: Call, step: Step, model: str) -> Any:
        """The parsed answer; raises a `ClientError`."""
        answer = grpc_wire.read(call, step.method, self.url, model)
        if step.method == "ServerMetadata":
            self.cancels = cancelling.survives(answer.version)
        return answer

    def _refused(self, error: Refusal, model: str) -> ClientError:
        """The error for a connection that could not be made."""
        return refused(error, self.endpoint, model)


class BlockingConnection(Channel):
    """A connection that several threads may use together; made with the first call.

    A call waits `reconnect_s` for a server that is gone.
    """

    def __init__(self, url: str | Endpoint, *, reconnect_s: float = RECONNECT_S) -> None:
        super().__init__(url, reconnect_s)
        self._idle = Idle[_Line]()
        self._busy: set[_Line] = set()
        self._changed, self._closed = threading.Condition(), False
        self.dropped = 0

    def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the parsed answer.

        Raises a `ClientError`, and `ValueError` if the connection was closed.
        """
        deadline, pieces = deadline_of(step), grpc_wire.request(step)
        try:
            if self.dropped >= cancelling.MAX_DROPPED:
                self._wait_for_place(deadline)
            for attempt in range(ATTEMPTS):
                line = self._kept() or self._connect(deadline, model)
                left = left_s(deadline)
                call = Call(self._opening(step, left), pieces, _nothing)
                self._make(line, call, deadline, may_cancel=self._may_cancel(step))
                if not call.error:
                    return self._read(call, step, model)
                if not call.is_unknown or attempt == ATTEMPTS - 1:
                    break
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self.url, model) from error
        raise grpc_wire.broken(call, self.url, model) from call.error

    def _make(self, line: "_Line", call: Call, deadline: float | None, *, may_cancel: bool) -> None:
        """Make one call on a connection; one that is left without an answer goes on, or is cancelled on the server.

        After Ctrl-C, which may come between bytes and their count, the connection is of no more use.
        """
        with self._changed:
            self._busy.add(line)
        try:
            line.ask(call, deadline)
        except OutOfTimeError:
            self._leave(line, call, may_cancel=may_cancel or not call.stream)
            raise
        except BaseException:
            line.http2.takes = False
            self._leave(line, call, may_cancel=may_cancel or bool(line.unsent or call.left))
            raise
        self._give_back(line)

    def _leave(self, line: "_Line", call: Call, *, may_cancel: bool) -> None:
        """Cancel a call on the server, or read its answer in a thread."""
        if may_cancel:
            if line.http2.takes:
                line.cancel(call)
            self._give_back(line)
            return
        line.http2.keep(call)
        with self._changed:
            self.dropped += 1
        threading.Thread(target=self._finish, args=(line, call), daemon=True).start()

    def _finish(self, line: "_Line", call: Call) -> None:
        """Read the answer to a call whose caller has left."""
        line.ask(call, None, again=True)
        with self._changed:
            self.dropped -= 1
            self._changed.notify_all()
        self._give_back(line)

    def _wait_for_place(self, deadline: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.dropped < cancelling.MAX_DROPPED, left_s(deadline)):
                raise TimeoutError

    def _kept(self) -> "_Line | None":
        """An idle connection that the server has not closed."""
        if self._closed:
            raise ValueError("the connection was closed")
        while line := self._idle.take():
            if line.is_usable():
                return line
            line.close()
        return None

    def _give_back(self, line: "_Line") -> None:
        with self._changed:
            self._busy.discard(line)
            keeps = line.http2.takes and not self._closed
            if keeps:
                self._idle.put(line)
        if not keeps:
            line.close()

    def _connect(self, deadline: float | None, model: str) -> "_Line":
        """A new connection; tries for `reconnect_s` if no server is there."""
        until, first = time.monotonic() + self._reconnect_s, None
        while True:
            try:
                return self._connect_once(deadline)
            except (OSError, AnswerError) as error:
                if isinstance(error, TimeoutError):
                    left_s(deadline)  # raises if it is the caller's
                first = first or self._refused(error, model)
                left = seconds_until(until if deadline is None else min(until, deadline))
                if left < BACKOFF_S or isinstance(first, TlsError):
                    raise first from error
            time.sleep(BACKOFF_S)

    def _connect_once(self, deadline: float | None) -> "_Line":
        left = left_s(deadline)
        seconds = CONNECT_S if left is None else min(CONNECT_S, left)
        until = deadline_after(seconds)
        if proxy := proxies.of(self.endpoint):
            opened = proxies.connect(proxy, self.endpoint, seconds)
        else:
            opened = socket.create_connection((self._host, self.endpoint.port), seconds)
        try:
            prepare(opened)
            if self._tls:  # if the certificate is refused, this closes the connection
                opened = self._tls.wrap_socket(opened, server_hostname=self._name)
            line = _Line(opened)
            line.open(until)
        except BaseException:
            opened.close()
            raise
        return line

    def close(self) -> None:
        """End the connection; if the server would not survive that, only when the calls in flight are answered."""
        with self._changed:
            self._changed.wait_for(lambda: not self.dropped, cancelling.CLOSE_S)
            self._closed = True
            busy = list(self._busy) if self.cancels else []
        self._idle.close()
        for line in busy:
            line.end()


class _Line(Line):
    """A connection of HTTP/2, and the call that is on it."""

    def __init__(self, connected: socket.socket) -> None:
        self.http2 = Http2()
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
        self._is_awaited = partial(getattr, call, "is_over")
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
        silent_s = KEEPALIVE_TIMEOUT_S if self._pinged else KEEPALIVE_S
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


def prepare(opened: socket.socket) -> None:
    """Set the options of a socket: no delay of small pieces, and limits for silence and for unacknowledged bytes."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * KEEPALIVE_TIMEOUT_S))
    seconds, rest = divmod(KEEPALIVE_S, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(1e6 * rest)))


def refused(error: Refusal, endpoint: Endpoint, model: str) -> ClientError:
    """The error for a connection that could not be made; nothing of a request was sent."""
    closed = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError | BrokenPipeError)
    text = str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError) and error.errno:
        text = "connection refused"
    elif isinstance(error, TimeoutError):
        text = f"no connection within {CONNECT_S:g} s"
    attributes: dict[str, Any] = {"status": "UNAVAILABLE", "text": text, "model": model, "url": endpoint.url}
    if endpoint.tls and (closed or isinstance(error, ssl.SSLError)):
        return TlsError(
            f"{endpoint.url}: no TLS connection: {text}. "
            + (
                "The server closed it: it may ask for a client certificate that it trusts (tls=Tls(certificate=..., "
                "key=...)), or not speak TLS."
                if closed or "alert" in text.lower()
                else "Give the certificate that signed the server's, as tls=Tls(ca=...), and the name that is in the "
                "server's; for a server without TLS write grpc://."
            ),
            **attributes,
        )
    if closed or isinstance(error, AnswerError):
        return ServerUnreachableError(
            f"{endpoint.url}: what is there speaks no plain gRPC ({text}). If it speaks TLS, write grpcs://; if this "
            "is the HTTP port, write http:// before it.",
            **attributes,
        )
    return explained("UNAVAILABLE", text, endpoint.url, model, sent=False)


def checked(url: str) -> str:
    """The address if it is host:port without a scheme; raises `AddressError` otherwise."""
    if Endpoint.of(url).http is not None:
        raise AddressError(f"{url}: not host:port. Write it without a scheme, for example {DEFAULT_URL}.", url=url)
    return url


def channel_arguments(url: str) -> Options:
    """gRPC's options for tritonclient's own client of the server at `url`; raises `AddressError`."""
    return Endpoint.of(url).proxy()


def _nothing(_: Call) -> None:
    """The thread that waits sees by itself that the call is over."""
