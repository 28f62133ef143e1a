"""HTTP for asyncio: each request in flight has a connection, which is kept for the next one."""

import asyncio
import contextlib
import os
import select
import ssl
from typing import Any, cast

from ._address import Address
from ._http import HttpTarget, Piece, drop, joined, watch
from ._http_answer import HttpAnswer, HttpError
from ._in_flight import InFlight
from ._steps import Step, seconds_left

CONNECTIONS = 256
"""The most requests in flight together: each needs a connection, and many systems allow a process 1024 open files."""

LEFT_S = 60.0
"""How long a request without a deadline counts after its caller has left; the server may be gone."""

PIECE_BYTES = 256 << 10
"""The largest piece of a request that asyncio is given; it keeps a copy of what the system does not take."""


class AsyncHttpConnection(HttpTarget):
    """Connections for asyncio, which belong to the event loop that they are first used in.

    A request that goes on after its caller has left counts in `in_flight` until it is answered or its deadline passes.
    """

    def __init__(self, address: Address, model: str, most_bytes: int, in_flight: InFlight) -> None:
        super().__init__(address, model)
        self.in_flight, self.most_bytes, self._closed = in_flight, most_bytes, False
        self._idle: list[HttpProtocol] = []
        self.opened: set[HttpProtocol] = set()
        in_flight.limit = min(in_flight.limit, CONNECTIONS)

    async def send(self, step: Step) -> Any:
        """Send one request; returns what `step.read` makes of its answer. Raises a `ClientError`."""
        pieces = joined([step.head, *step.tensors])
        while True:
            used = kept = self._kept()
            try:
                used = used or await self._connect(seconds_left(step.deadline))
                await used.ask(pieces, seconds_left(step.deadline))
            except asyncio.CancelledError:
                if used:
                    used.leave()
                raise
            except (OSError, HttpError) as error:
                complete = used is not None and used.is_sent
                if used:
                    used.abort()
                self._check_again(error, step, connected=used is not None, reused=bool(kept), complete=complete)
                continue
            try:
                return step.read(used.answer)
            finally:
                self._give_back(used)

    def _kept(self) -> "HttpProtocol | None":
        """An idle connection that the server has not closed."""
        while self._idle:
            kept = self._idle.pop()
            if not kept.has_ended():
                return kept
            kept.abort()
        return None

    async def _connect(self, seconds: float | None) -> "HttpProtocol":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, made = await loop.create_connection(
                    lambda: HttpProtocol(self), self._host, self._port, ssl=self._tls, server_hostname=self._name
                )
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if not self._tls:
                raise
            # What asyncio raises if the server closes the connection during the handshake.
            raise ssl.SSLEOFError(str(error) or "the server closed the connection") from error
        return made

    def _give_back(self, used: "HttpProtocol") -> None:
        """Keep the connection of a call that has ended for the next one, if it can carry one."""
        used.is_idle = True
        if used.answer.keeps and used.is_sent and not self._closed:
            used.answer.reset()
            self._idle.append(used)
        else:
            used.abort()

    async def close(self) -> None:
        """Close the idle connections, and those whose callers have left; other requests go on to their end."""
        self._closed = True
        self._idle.clear()
        for each in list(self.opened):
            if each.is_idle or each.is_left:
                each.abort()
        await asyncio.sleep(0)  # they close in the next round of the loop


class HttpProtocol(asyncio.BufferedProtocol):
    """A connection, and the request that is on it.

    It `is_idle` between two requests. It `is_left` if the caller of its request has left; then its answer is not read,
    and the connection is closed when that comes.
    """

    _transport: asyncio.Transport
    _outcome: "asyncio.Future[None]"

    def __init__(self, owner: AsyncHttpConnection) -> None:
        self._owner, self._poll, self._loop = owner, select.poll(), asyncio.get_running_loop()
        self._unsent: list[Piece] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_full = self._is_over = False
        self.answer, self.is_idle, self.is_left = HttpAnswer(owner.most_bytes), True, False

    @property
    def is_sent(self) -> bool:
        """Whether the whole request was handed to the system."""
        return not (self._unsent or self._is_full)

    def has_ended(self) -> bool:
        """Whether the server has closed an idle connection: something can be received, and nothing was asked."""
        return self._is_over or bool(self._poll.poll(0))

    def ask(self, pieces: list[Piece], seconds: float | None) -> "asyncio.Future[None]":
        """Send a request; the result is there when its answer is, which may be before all is sent.

        The future raises `TimeoutError`, another `OSError`, or `HttpError`.
        """
        self.is_idle, self._outcome = False, self._loop.create_future()
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self._expire)
        if len(pieces) == 1 and not self._is_full:
            self._transport.write(pieces[0])
        else:
            self._unsent = list(pieces)
            self._send()
        return self._outcome

    def leave(self) -> None:
        """Take that the caller was cancelled; the server may still work on the request."""
        if not self._outcome.cancelled():
            self._outcome.exception()  # it came at the same moment, and is not needed
        if self.is_sent and not (self.answer.begun or self._is_over):
            self.is_left = True
            self._timer = self._timer or self._loop.call_later(LEFT_S, self._expire)
            self._owner.in_flight.abandon()
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
        # asyncio then asks for more only when the system has taken all. It counts a buffer as full above the limit, and
        # with TLS at the limit, where 0 would always be full.
        self._transport.set_write_buffer_limits(high=1 if transport.get_extra_info("ssl_object") else 0)
        watch(transport.get_extra_info("socket"))
        self._file = transport.get_extra_info("socket").fileno()
        self._poll.register(self._file, select.POLLIN)
        self._owner.opened.add(self)

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
                self._settle()

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
        self._owner.opened.discard(self)
        if self.is_left:
            self._owner.in_flight.finish_abandoned()
        elif not self.is_idle:
            self._read_last_answer()
            self._settle(error if isinstance(error, OSError) else ConnectionResetError("the connection was closed"))

    def pause_writing(self) -> None:
        """Called by asyncio when the system takes no more for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Called by asyncio when the system has taken all that it was given."""
        self._is_full = False
        self._send()

    def _send(self) -> None:
        """Give asyncio pieces until the system takes no more."""
        while self._unsent and not (self._is_full or self._is_over):
            piece = memoryview(self._unsent[0])[:PIECE_BYTES]
            drop(self._unsent, len(piece))
            self._transport.write(piece)

    def _settle(self, error: Exception | None = None) -> None:
        """End the request; the first call counts."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
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

    def _read_last_answer(self) -> None:
        """Read the answer of a server that closed the connection before it had all of the request.

        asyncio closes a connection that cannot be written to without reading what has come.
        """
        if self._outcome.done() or self._transport.get_extra_info("ssl_object"):
            return
        with contextlib.suppress(OSError, HttpError):
            while not self.answer.complete:
                if count := os.readv(self._file, [self.answer.room()]):
                    self.answer.received(count)
                else:
                    self.answer.ended()
        if self.answer.complete:
            self._settle()
