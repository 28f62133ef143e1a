"""A connection to a KServe v2 server over gRPC for asyncio: many calls in flight on one connection of HTTP/2."""

import asyncio
import contextlib
import copy
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from . import cancelling, connection, grpc_wire, proxies, wire
from . import protocol as pb
from .connection import BACKOFF_S, CONNECT_S, RECONNECT_S, Channel, prepare
from .endpoint import DEFAULT_URL, Endpoint
from .errors import ClientError, TlsError, explained, timed_out
from .http2 import Call, Http2
from .in_flight import InFlight
from .line import MOST_PIECES, AnswerError, Piece, drop
from .rest import deadline_of, left_s
from .steps import Step

PIECE_BYTES = 64 << 10
"""The largest piece that asyncio is given; of one that the system does not take, it keeps a copy."""


READ_S = 1.0
"""How long answers are read from a connection on which nothing can be sent any more."""


class Connection(Channel):
    """A connection for asyncio, which belongs to the event loop that it is first used in.

    A call that goes on after its caller has left counts in `in_flight`.
    """

    def __init__(
        self, url: str | Endpoint, in_flight: InFlight | None = None, *, reconnect_s: float = RECONNECT_S
    ) -> None:
        super().__init__(url, reconnect_s)
        self._in_flight, self._closed = in_flight, False
        self._line: _Line | None = None
        self._lines: set[_Line] = set()
        self._connecting: asyncio.Task[_Line] | None = None

    async def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the parsed answer, raises a `ClientError`.

        Cancelling the task cancels the call on the server if that survives it; otherwise its answer is dropped.
        """
        deadline, pieces = deadline_of(step), grpc_wire.request(step)
        try:
            for attempt in range(connection.ATTEMPTS):
                line = self._line
                if line is None or not line.http2.takes or self._closed:
                    line = await self._connected(deadline, model)
                left = None if deadline is None else left_s(deadline)
                call = _Waited(self._opening(step, left), pieces, line.loop)
                line.ask(call)
                await self._answer(line, call, left, may_cancel=self._may_cancel(step))
                if not call.error:
                    return self._read(call, step, model)
                if not call.is_unknown or attempt == connection.ATTEMPTS - 1:
                    break
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self.url, model) from error
        raise grpc_wire.broken(call, self.url, model) from call.error

    async def _answer(self, line: "_Line", call: "_Waited", left: float | None, *, may_cancel: bool) -> None:
        """Wait for the answer; raises `TimeoutError` after `left` seconds."""
        timer = None if left is None else line.loop.call_later(left, call.expire)
        try:
            await call.answer
        except BaseException:
            if not call.is_over:
                self._leave(line, call, may_cancel=may_cancel)
            raise
        finally:
            if timer:
                timer.cancel()

    def _leave(self, line: "_Line", call: "_Waited", *, may_cancel: bool) -> None:
        """Cancel a call on the server, or let it go on without its caller."""
        if may_cancel or not call.stream:
            line.http2.reset(call)
            line.plan()
            line.check_idle()
            return
        line.http2.keep(call)
        if self._in_flight:
            self._in_flight.stay()
            call.after = self._in_flight.leave

    async def _connected(self, deadline: float | None, model: str) -> "_Line":
        """A connection that takes calls; all callers wait for the same one. Raises `TimeoutError`, a `ClientError`."""
        if self._closed:
            raise asyncio.CancelledError
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(model))
            self._connecting.add_done_callback(self._made)
        try:
            async with asyncio.timeout(left_s(deadline)):
                return await asyncio.shield(self._connecting)
        except ClientError as error:
            raise copy.copy(error) from error  # others get it, too

    def _made(self, task: "asyncio.Task[_Line]") -> None:
        self._connecting = None
        if not task.cancelled() and not task.exception():
            self._line = task.result()

    async def _connect(self, model: str) -> "_Line":
        """A new connection; tries for `reconnect_s` if no server is there."""
        loop = asyncio.get_running_loop()
        until, first = loop.time() + self._reconnect_s, None
        while True:
            try:
                return await self._connect_once()
            except (OSError, AnswerError) as error:
                first = first or self._refused(error, model)
                if until - loop.time() < BACKOFF_S or isinstance(first, TlsError):
                    raise first from error
            await asyncio.sleep(BACKOFF_S)

    async def _connect_once(self) -> "_Line":
        loop, line = asyncio.get_running_loop(), None
        try:
            async with asyncio.timeout(CONNECT_S):
                where: dict[str, Any] = {"host": self._host, "port": self.endpoint.port}
                if proxy := proxies.of(self.endpoint):
                    connect = partial(proxies.connect, proxy, self.endpoint, CONNECT_S)
                    where = {"sock": await loop.run_in_executor(None, connect)}
                _, line = await loop.create_connection(
                    lambda: _Line(self._lines), **where, ssl=self._tls, server_hostname=self._name
                )
                await line.opened
        except BaseException as error:
            if line:
                line.abort()
            if self._tls and line is None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
                # What asyncio raises if the server closes the connection during the handshake.
                raise ssl.SSLEOFError(str(error) or "the server closed the connection") from error
            raise
        return line

    async def infer(
        self, model: str, inputs: Mapping[str, NDArray[np.generic]], *, timeout_s: float | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Send arrays by input name, unchecked; returns the outputs by name, raises a `ClientError`."""
        head = wire.head(model, "", ((name, wire.datatype(array), array.shape) for name, array in inputs.items()))
        step = Step("ModelInfer", head, [wire.contents(array) for array in inputs.values()], timeout_s)
        return wire.answers(await self.call(step, model))

    async def check(self, model: str) -> None:
        """Raise `NotReadyError` unless `model` is ready, `ServerUnreachableError` if no server is there."""
        request = pb.ModelReadyRequest(name=model).SerializeToString()
        if not (await self.call(Step("ModelReady", request), model)).ready:
            raise explained("UNAVAILABLE", "is not ready", self.url, model)

    async def close(self) -> None:
        """End all calls and the connection; if the server would not survive that, when they are answered."""
        self._closed = True
        if self._connecting:
            self._connecting.cancel()
        lines = list(self._lines)
        for line in lines:
            line.let_go(at_once=self.cancels)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cancelling.CLOSE_S):
                for line in lines:
                    await line.closed.wait()


class _Waited(Call):
    """A call, and the future of the task that waits for its answer; `after` is called at its end if that has left."""

    __slots__ = ("after", "answer")

    def __init__(self, opening: bytes, pieces: Sequence[Piece], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(opening, pieces, _settle)
        self.answer: asyncio.Future[None] = loop.create_future()
        self.after: Callable[[], None] | None = None

    def expire(self) -> None:
        """Take that the caller's time is over."""
        if not self.answer.done():
            self.answer.set_exception(TimeoutError())


def _settle(call: Call) -> None:
    assert isinstance(call, _Waited)
    if not call.answer.done():
        call.answer.set_result(None)
    if call.after:
        call.after()


class _Line(asyncio.BufferedProtocol):
    """One connection; with calls in flight it is in `_ALIVE`, so that the end of the loop does not close it."""

    _transport: asyncio.Transport

    def __init__(self, lines: "set[_Line]") -> None:
        self.loop, self.http2, self._lines = asyncio.get_running_loop(), Http2(), lines
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
            cast(_Waited, call).answer.cancel()
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
        self._timer = self.loop.call_later(connection.KEEPALIVE_S, self._look)
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
        left_s = connection.KEEPALIVE_S - silent_s
        if left_s <= 0 and self.http2.calls:
            self.http2.ping()
            self._send()
            self._pinged, left_s = True, connection.KEEPALIVE_TIMEOUT_S
        elif left_s <= 0:
            left_s = connection.KEEPALIVE_S
        self._timer = self.loop.call_later(left_s, self._look)


_ALIVE: set[_Line] = set()


@contextlib.asynccontextmanager
async def connect(url: str = DEFAULT_URL) -> AsyncIterator[Connection]:
    """A connection to a gRPC address, closed at the end; nothing is sent yet. Raises `AddressError`."""
    made = Connection(url)
    try:
        yield made
    finally:
        await made.close()
