"""Connections to a KServe v2 server over HTTP for asyncio: each request in flight has one."""

import asyncio
import contextlib
import os
import select
import ssl
from collections.abc import Sequence
from typing import Any, cast

from .endpoint import Endpoint
from .http_answer import Answer, HttpError
from .in_flight import InFlight
from .line import MOST_PIECES, Piece, drop
from .rest import Rest, deadline_of, left_s, pieces_of
from .rest_wire import read
from .steps import Step

CONNECTIONS = 256
"""The most requests in flight together: each needs a connection, and many systems allow a process 1024 open files."""

PIECE_BYTES = 64 << 10
"""The largest piece of a request that asyncio is given; of one that the system does not take, it keeps a copy."""


class RestConnection(Rest):
    """A connection for asyncio, which belongs to the event loop that it is first used in.

    A request that goes on after its caller has left counts in `in_flight` until it is answered or its deadline passes.
    """

    def __init__(self, url: str | Endpoint, in_flight: InFlight | None = None) -> None:
        super().__init__(url)
        self.in_flight, self._closed = in_flight, False
        self._idle: list[_Line] = []
        self.lines: set[_Line] = set()
        if in_flight:
            in_flight.limit = min(in_flight.limit, CONNECTIONS)

    async def call(self, step: Step, model: str) -> Any:
        """Send one request of `rest_wire.Requests` about `model`; returns what `rest_wire.read` makes of the answer.

        Raises a `ClientError`.
        """
        deadline = deadline_of(step)
        pieces: list[Piece] = pieces_of(step) if self._tls else [step.message, *step.tensors]
        while True:
            line = kept = self._kept()
            try:
                line = line or await self._connect(left_s(deadline))
                await line.ask(pieces, deadline and left_s(deadline))
            except asyncio.CancelledError:
                if line:
                    line.leave()
                raise
            except (OSError, HttpError) as error:
                complete = line is not None and line.is_sent
                if line:
                    line.abort()
                self._check_again(error, step, model, connected=line is not None, reused=bool(kept), complete=complete)
                continue
            try:
                return read(line.answer, step.method, self.url, model)
            finally:
                self.give_back(line)

    def _kept(self) -> "_Line | None":
        """An idle connection that the server has not closed."""
        while self._idle:
            line = self._idle.pop()
            if not line.has_ended():
                return line
            line.abort()
        return None

    async def _connect(self, seconds: float | None) -> "_Line":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, line = await loop.create_connection(
                    lambda: _Line(self), self._host, self.endpoint.port, ssl=self._tls, server_hostname=self._name
                )
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if not self._tls:
                raise
            # What asyncio raises if the server closes the connection during the handshake.
            raise ssl.SSLEOFError(str(error) or "the server closed the connection") from error
        return line

    def give_back(self, line: "_Line") -> None:
        """Keep the connection of a call that has ended for the next one, if it can carry one."""
        line.is_idle = True
        if line.answer.keeps and line.is_sent and not self._closed:
            line.answer.reset()
            self._idle.append(line)
        else:
            line.abort()

    async def close(self) -> None:
        """Close the idle connections, and those whose callers have left; other requests go on to their end."""
        self._closed = True
        self._idle.clear()
        for line in list(self.lines):
            if line.is_idle or line.is_left:
                line.abort()
        await asyncio.sleep(0)  # they close in the next round of the loop


class _Line(asyncio.BufferedProtocol):
    """A connection, and the request that is on it.

    It `is_idle` between two requests. It `is_left` if the caller of its request has left; then its answer is not read,
    and the connection is closed when that comes.
    """

    _transport: asyncio.Transport
    _outcome: "asyncio.Future[None]"

    def __init__(self, owner: RestConnection) -> None:
        self._owner, self._poll, self._loop = owner, select.poll(), asyncio.get_running_loop()
        self._unsent: list[Piece] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_full = self._is_over = False
        self.answer, self.is_idle, self.is_left = Answer(), True, False

    @property
    def is_sent(self) -> bool:
        """Whether the whole request was handed to the system."""
        return not (self._unsent or self._is_full)

    def has_ended(self) -> bool:
        """Whether the server has closed an idle connection: something can be received, and nothing was asked."""
        return self._is_over or bool(self._poll.poll(0))

    def ask(self, pieces: Sequence[Piece], seconds: float | None) -> "asyncio.Future[None]":
        """Send a request; the result is there when its answer is, which may be before all is sent.

        The future raises `TimeoutError`, another `OSError`, or `HttpError`.
        """
        self.is_idle, self._outcome = False, self._loop.create_future()
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self._expire)
        self._unsent = list(pieces)
        self._send()
        return self._outcome

    def leave(self) -> None:
        """Take that the caller was cancelled; the server may still work on the request."""
        in_flight = self._owner.in_flight
        if not self._outcome.cancelled():
            self._outcome.exception()  # it came at the same moment, and is not needed
        if in_flight and self.is_sent and not (self.answer.begun or self._is_over):
            self.is_left = True
            in_flight.stay()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection."""
        if self._timer:
            self._timer.cancel()
        self._is_over = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once connected, with TLS after its handshake."""
        self._transport = cast(asyncio.Transport, transport)
        # So that `is_sent` is exact.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._file = transport.get_extra_info("socket").fileno()
        self._poll.register(self._file, select.POLLIN)
        self._owner.lines.add(self)

    def get_buffer(self, _: int) -> memoryview:
        """Called by asyncio for a place to receive to."""
        return self.answer.room()

    def buffer_updated(self, count: int) -> None:
        """Called by asyncio when something was received."""
        if self.is_idle or self.is_left:
            self.abort()
            return
        try:
            self.answer.received(count)
        except HttpError as error:
            self._settle(error)
            self.abort()
        else:
            if self.answer.complete:
                if self._timer or self._outcome.done():
                    self._settle()
                else:
                    self._outcome.set_result(None)

    def eof_received(self) -> None:
        """Called by asyncio when the server has closed its side; asyncio then closes the other one."""
        self._is_over = True
        if self.is_idle or self.is_left:
            return
        try:
            self.answer.ended()
        except (ConnectionError, HttpError) as error:
            self._settle(error)
        else:
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        self._is_over = True
        self._owner.lines.discard(self)
        if self.is_left and self._owner.in_flight:
            self._owner.in_flight.leave()
        elif not self.is_idle:
            self._rescue()
            self._settle(error if isinstance(error, OSError) else ConnectionResetError("the connection was closed"))

    def pause_writing(self) -> None:
        """Called by asyncio when the system takes no more for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Called by asyncio when the system has taken all that it was given."""
        self._is_full = False
        self._send()

    def _send(self) -> None:
        """Send as much as the system takes: the tensors from their own memory, and with TLS through asyncio.

        asyncio tells when the system takes more, if it is given a piece that the system does not take.
        """
        try:
            while self._unsent and not (self._is_full or self._is_over):
                if not self._is_tls:
                    try:
                        drop(self._unsent, os.writev(self._file, self._unsent[:MOST_PIECES]))
                        continue
                    except BlockingIOError:
                        pass
                piece = memoryview(self._unsent[0])[:PIECE_BYTES]
                drop(self._unsent, len(piece))
                self._transport.write(piece)
        except OSError as error:
            self._rescue()
            self._settle(error)

    def _settle(self, error: Exception | None = None) -> None:
        """End the request; the first call counts."""
        if self._timer:
            self._timer.cancel()
        if self._outcome.done():
            return
        if error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)

    def _expire(self) -> None:
        if not self.is_left:
            self._settle(TimeoutError())
        self.abort()

    def _rescue(self) -> None:
        """Read the answer of a server that closed the connection before it had all of the request.

        asyncio closes a connection that cannot be written to without reading what has come.
        """
        if self.is_sent or self._is_tls:
            return
        with contextlib.suppress(OSError, HttpError):
            while not self.answer.complete:
                if count := os.readv(self._file, [self.answer.room()]):
                    self.answer.received(count)
                else:
                    self.answer.ended()
        if self.answer.complete:
            self._settle()
