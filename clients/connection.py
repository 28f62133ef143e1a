"""A connection to a KServe v2 server over gRPC, blocking; `async_connection.py` is the one for asyncio.

Each call in flight has a connection of HTTP/2 of its own, so no other thread has to wake up for an answer.
"""

import socket
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from . import cancelling, grpc_wire, proxies
from .channel import ATTEMPTS, BACKOFF_S, CONNECT_S, RECONNECT_S, Channel, prepare
from .endpoint import DEFAULT_URL, Endpoint, Options
from .errors import AddressError, TlsError, timed_out
from .grpc_line import GrpcLine
from .http2_sending import Call
from .idle import Idle
from .line import AnswerError, OutOfTimeError
from .refusal import refused
from .rest import deadline_of, left_s
from .steps import Step, deadline_after, seconds_until

if TYPE_CHECKING:
    from .streams import BlockingStreams


class BlockingConnection(Channel):
    """A connection that several threads may use together; made with the first call.

    A call waits `reconnect_s` for a server that is gone. The system's resolver of host names knows no deadline, so a
    call that connects may outlast its own by that.
    """

    def __init__(self, url: str | Endpoint, *, reconnect_s: float = RECONNECT_S) -> None:
        super().__init__(url, reconnect_s)
        self._idle = Idle[GrpcLine]()
        self._busy: set[GrpcLine] = set()
        self._changed, self._closed = threading.Condition(), False
        self.dropped = 0
        self._streams: BlockingStreams | None = None

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
                if not self.may_repeat(call, attempt):
                    break
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self.url, model) from error
        raise grpc_wire.broken(call, self.url, model) from call.error

    def stream(self, step: Step, model: str) -> Generator[Any, None, None]:
        """The answers to one request, as they come (see streams.py); raises a `ClientError`."""
        with self._changed:
            if self._closed:
                raise ValueError("the connection was closed")
            if self._streams is None:
                from .streams import BlockingStreams

                self._streams = BlockingStreams(self.endpoint, reconnect_s=self._reconnect_s)
            self._streams.cancels = self.cancels
        return self._streams.answers(step, model)

    def _make(self, line: GrpcLine, call: Call, deadline: float | None, *, may_cancel: bool) -> None:
        """Make one call on a connection; one that is left without an answer goes on, or is cancelled on the server.

        After Ctrl-C, which may come between bytes and their count, the connection is of no more use.
        """
        self._use(line)
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

    def _use(self, line: GrpcLine) -> None:
        """Note that a call is on a connection, so that `close` ends it; raises `ValueError` after that."""
        with self._changed:
            if not (self._closed and self.cancels):
                self._busy.add(line)
                return
        line.close()
        raise ValueError("the connection was closed")

    def _leave(self, line: GrpcLine, call: Call, *, may_cancel: bool) -> None:
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

    def _finish(self, line: GrpcLine, call: Call) -> None:
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

    def _kept(self) -> GrpcLine | None:
        """An idle connection that the server has not closed."""
        if self._closed:
            raise ValueError("the connection was closed")
        while line := self._idle.take():
            if line.is_usable():
                return line
            line.close()
        return None

    def _give_back(self, line: GrpcLine) -> None:
        with self._changed:
            self._busy.discard(line)
            keeps = line.http2.takes and not self._closed
            if keeps:
                self._idle.put(line)
        if not keeps:
            line.close()

    def _connect(self, deadline: float | None, model: str) -> GrpcLine:
        """A new connection; tries for `reconnect_s` if no server is there."""
        until, first = time.monotonic() + self._reconnect_s, None
        while True:
            try:
                return self._connect_once(deadline)
            except (OSError, AnswerError) as error:
                if isinstance(error, TimeoutError):
                    left_s(deadline)  # raises if it is the caller's
                first = first or refused(error, self.endpoint, model)
                left = seconds_until(until if deadline is None else min(until, deadline))
                if left < BACKOFF_S or isinstance(first, TlsError):
                    raise first from error
            time.sleep(BACKOFF_S)

    def _connect_once(self, deadline: float | None) -> GrpcLine:
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
            line = GrpcLine(opened, self.window)
            line.open(until)
        except BaseException:
            opened.close()
            raise
        return line

    def close(self) -> None:
        """End the connection; if the server would not survive that, only when the calls in flight are answered."""
        with self._changed:
            self._closed = True  # first, so that no call or stream begins meanwhile
        if self._streams:
            self._streams.close()
        with self._changed:
            self._changed.wait_for(lambda: not self.dropped, cancelling.CLOSE_S)
            busy = list(self._busy) if self.cancels else []
        self._idle.close()
        for line in busy:
            line.end()


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
