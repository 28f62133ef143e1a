"""A connection to a KServe v2 server over gRPC for asyncio: many calls in flight on one connection of HTTP/2."""

import asyncio
import contextlib
import copy
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import cancelling, grpc_wire, proxies, wire
from . import protocol as pb
from .async_line import AsyncLine, Waited
from .channel import ATTEMPTS, BACKOFF_S, CONNECT_S, RECONNECT_S, Channel
from .endpoint import DEFAULT_URL, Endpoint
from .errors import ClientError, TlsError, explained, timed_out
from .in_flight import InFlight
from .line import AnswerError
from .refusal import refused
from .rest import deadline_of, left_s
from .steps import Step

if TYPE_CHECKING:
    from .async_streams import Streams


class Connection(Channel):
    """A connection for asyncio, which belongs to the event loop that it is first used in.

    A call that goes on after its caller has left counts in `in_flight`.
    """

    def __init__(
        self, url: str | Endpoint, in_flight: InFlight | None = None, *, reconnect_s: float = RECONNECT_S
    ) -> None:
        super().__init__(url, reconnect_s)
        self._in_flight, self._closed = in_flight, False
        self._line: AsyncLine | None = None
        self._lines: set[AsyncLine] = set()
        self._connecting: asyncio.Task[AsyncLine] | None = None
        self._streams: Streams | None = None

    async def call(self, step: Step, model: str) -> Any:
        """Make one call of the protocol about `model`; returns the parsed answer, raises a `ClientError`.

        Cancelling the task cancels the call on the server if that survives it; otherwise its answer is dropped.
        """
        deadline, pieces = deadline_of(step), grpc_wire.request(step)
        try:
            for attempt in range(ATTEMPTS):
                line = self._line
                if line is None or not line.http2.takes or self._closed:
                    line = await self._connected(deadline, model)
                left = None if deadline is None else left_s(deadline)
                call = Waited(self._opening(step, left), pieces, line.loop)
                line.ask(call)
                await self._answer(line, call, left, may_cancel=self._may_cancel(step))
                if not call.error:
                    return self._read(call, step, model)
                if not self.may_repeat(call, attempt):
                    break
        except TimeoutError as error:
            raise timed_out(step.timeout_s, self.url, model) from error
        raise grpc_wire.broken(call, self.url, model) from call.error

    async def _answer(self, line: AsyncLine, call: Waited, left: float | None, *, may_cancel: bool) -> None:
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

    def _leave(self, line: AsyncLine, call: Waited, *, may_cancel: bool) -> None:
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

    async def _connected(self, deadline: float | None, model: str) -> AsyncLine:
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

    def _made(self, task: asyncio.Task[AsyncLine]) -> None:
        self._connecting = None
        if not task.cancelled() and not task.exception():
            self._line = task.result()

    async def _connect(self, model: str) -> AsyncLine:
        """A new connection; tries for `reconnect_s` if no server is there."""
        loop = asyncio.get_running_loop()
        until, first = loop.time() + self._reconnect_s, None
        while True:
            try:
                return await self._connect_once()
            except (OSError, AnswerError) as error:
                first = first or refused(error, self.endpoint, model)
                if until - loop.time() < BACKOFF_S or isinstance(first, TlsError):
                    raise first from error
            await asyncio.sleep(BACKOFF_S)

    async def _connect_once(self) -> AsyncLine:
        loop, line = asyncio.get_running_loop(), None
        try:
            async with asyncio.timeout(CONNECT_S):
                where: dict[str, Any] = {"host": self._host, "port": self.endpoint.port}
                if proxy := proxies.of(self.endpoint):
                    connect = partial(proxies.connect, proxy, self.endpoint, CONNECT_S)
                    where = {"sock": await loop.run_in_executor(None, connect)}
                _, line = await loop.create_connection(
                    lambda: AsyncLine(self._lines, self.window), **where, ssl=self._tls, server_hostname=self._name
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

    def stream(self, step: Step, model: str) -> AsyncGenerator[Any, None]:
        """The answers to one request, as they come (see async_streams.py); raises a `ClientError`."""
        if self._closed:
            raise asyncio.CancelledError
        if self._streams is None:
            from .async_streams import Streams

            self._streams = Streams(self.endpoint, self._in_flight, reconnect_s=self._reconnect_s)
        self._streams.cancels = self.cancels
        return self._streams.answers(step, model)

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
        if self._streams:
            await self._streams.close()
        if self._connecting:
            self._connecting.cancel()
        lines = list(self._lines)
        for line in lines:
            line.let_go(at_once=self.cancels)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cancelling.CLOSE_S):
                for line in lines:
                    await line.closed.wait()


@contextlib.asynccontextmanager
async def connect(url: str = DEFAULT_URL) -> AsyncIterator[Connection]:
    """A connection to a gRPC address, closed at the end; nothing is sent yet. Raises `AddressError`."""
    made = Connection(url)
    try:
        yield made
    finally:
        await made.close()
